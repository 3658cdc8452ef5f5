"""The public tests of lab 2."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.messages import GenerateRequest, Request, SamplingParams, pack_ids
from common.request_state import RequestState
from evolution import Engine, EngineError
from experiments.labs.marks import cost, task

from . import adapters
from .find import read
from .processes import in_two_processes
from .turns import PlanList, Turns, first_difference, make_scheduler, make_turns, play

# ------------------------------------------------------------------ 2a

SEQ = PrefillSeq(1, 2, pack_ids([5, 6]), pack_ids([7, 8]), pack_ids([3, 4]), RowSampling(0.5, 0.9, 20, 42), True)
PREFILL = BatchPlan(1, [SEQ])
DECODE = BatchPlan(2, [], pack_ids([0, 1]), pack_ids([9, 8]))
LATER = BatchPlan(3, [], pack_ids([0, 1]), pack_ids([10, 11]))
OTHERS = [
    *(
        msgspec.structs.replace(PREFILL, prefill=[msgspec.structs.replace(SEQ, **change)])
        for change in ({"row": 2}, {"start": 1}, {"input_ids": pack_ids([5, 7])}, {"new_slots": pack_ids([8, 7])})
    ),
    msgspec.structs.replace(PREFILL, prefill=[SEQ, SEQ]),
    msgspec.structs.replace(PREFILL, turn=2),
    msgspec.structs.replace(PREFILL, decode_rows=pack_ids([0])),
]


def digests(plans: Sequence[BatchPlan | None]) -> list[int]:
    log = adapters.turn_log()
    for plan in plans:
        log.add(plan)
    return [log.digest(turn) for turn in range(1, len(plans) + 1)]


def check_other(other: BatchPlan) -> None:
    """Ranks that part in the first turn, and plan alike ever after."""
    a, b = digests([PREFILL, DECODE, None, LATER]), digests([other, DECODE, None, LATER])
    assert all(x != y for x, y in zip(a, b, strict=True)), f"{other} has the digest of {PREFILL}"


@task("2a_digest")
@pytest.mark.timeout(20)
def test_equal_plans_have_equal_digests_and_others_have_not() -> None:
    once = digests([PREFILL, DECODE, None, LATER])
    assert once == digests([msgspec.structs.replace(PREFILL), DECODE, None, LATER])
    assert all(0 <= digest < 1 << 64 for digest in once)
    assert once[:2] == digests([PREFILL, DECODE])
    assert digests([DECODE, PREFILL])[1] != once[1]
    for other in OTHERS:
        check_other(other)


def check_two_processes(seed: int, count: int) -> str:
    a, b = in_two_processes("scenarios:digests_of", seed, count)
    assert first_difference(a, b) is None, "the same plans have other digests in another process"
    assert len(set(a)) > count / 2
    return f"{len(a)} turns in two processes: {len(set(a))} digests of 8 bytes, all alike"


@task("2a_digest")
@pytest.mark.timeout(60)
def test_digests_are_alike_in_every_process() -> None:
    cost(check_two_processes(seed=1, count=150))


@task("2a_digest")
@pytest.mark.timeout(110)
def test_the_engines_ranks_part_where_your_digests_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From turn 12 on rank 1 takes what it uses for older than it is, and sooner or later it evicts something else. The
    engine compares its own digests in every turn, and says in which one they differ."""
    digests([PREFILL])
    monkeypatch.setenv("LAB2_DIGESTS", str(tmp_path))
    prompts = [[(7 * index + j) % 250 for j in range(20 + index % 3)] for index in range(12)]
    sampling = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    settings = {"model_path": "tiny", "max_total_tokens": 128, "max_running_requests": 4, "watchdog_timeout": 20.0}
    with (
        Engine(
            stage=f"{__package__}.stage:launch",
            tp_size=2,
            check_divergence=1,
            fault="TP1: own clock at turn 12",
            **settings,
        ) as engine,
        pytest.raises(EngineError, match=r"turn \d+: rank\(s\) 1 planned another batch") as error,
    ):
        for _ in range(10):
            engine.generate(input_ids=prompts, sampling_params=sampling)
    said = int(re.search(r"turn (\d+): rank", str(error.value))[1])
    a, b = read(tmp_path)
    assert first_difference(a, b) == said
    cost(f"the clock was set back in turn 12, the ranks parted in turn {said}; 16 bytes a turn were written")


# ------------------------------------------------------------------ 2b


class Ranks:
    """Running digests of ranks of which some part in a turn of their own, and how often they were asked."""

    def __init__(self, seed: int, turns: int, parted: dict[int, int]) -> None:
        self.turns = turns
        self.parted = parted  # rank -> the first turn in which it planned otherwise than those that never parted
        self.asked = 0
        self._seed = seed

    def ask(self, rank: int, turn: int) -> int:
        assert 1 <= turn <= self.turns, f"there is no turn {turn}: they are 1 to {self.turns}"
        self.asked += 1
        alone = rank in self.parted and turn >= self.parted[rank]
        return random.Random(f"{self._seed} {turn} {rank if alone else 'all'}").getrandbits(64)

    def truth(self, ranks: int) -> tuple[int, list[int]] | None:
        turns = [turn for turn in self.parted.values() if turn <= self.turns]
        if not turns:
            return None
        first = min(turns)
        alone = {rank for rank, turn in self.parted.items() if turn <= first}
        return first, [rank for rank in range(1, ranks) if (rank in alone) or (0 in alone)]


def check_search(ranks: int, turns: int, parted: dict[int, int], seed: int = 0) -> str:
    made = Ranks(seed, turns, parted)
    found = adapters.first_divergence(made.ask, ranks, turns)
    assert found == made.truth(ranks), f"{ranks} ranks of {turns} turns, parted: {parted}"
    most = ranks * (math.log2(turns) + 2)
    assert made.asked <= most, f"{made.asked} questions, where {most:.0f} are enough for {ranks} ranks, {turns} turns"
    return f"{ranks} ranks, {turns:,} turns: {made.asked} questions, where one for each turn makes {ranks * turns:,}"


@task("2b_first_turn")
@pytest.mark.timeout(15)
def test_the_turn_is_found() -> None:
    for turn in (1, 2, 37, 99, 100):
        check_search(2, 100, {1: turn})
    check_search(2, 1, {1: 1})
    check_search(4, 1000, {2: 500, 3: 400})
    cost(check_search(4, 100_000, {2: 61_803}))


@task("2b_first_turn")
@pytest.mark.timeout(15)
def test_nothing_to_find() -> None:
    check_search(2, 100, {})
    check_search(3, 1, {})


@task("2b_first_turn")
@pytest.mark.timeout(15)
def test_rank_0_is_the_odd_one() -> None:
    check_search(3, 64, {0: 17})


# ------------------------------------------------------------------ 2c


def plans_of(turns: Turns) -> tuple[list[BatchPlan | None], int]:
    """With room for whatever arrives, so that it is planned in the turn in which it arrives; and how many ended."""
    log = PlanList()
    ended = play(turns, log, scheduler=make_scheduler(rows=256, slots=20_000, chunk=-1))
    return log.plans, ended


def all_messages(turns: Turns) -> list[Request]:
    return [message for messages in turns for message in messages]


def check_late(turns: Turns, turn: int) -> str:
    before = [list(messages) for messages in turns]
    told_late = adapters.late(turns, turn)
    assert turns == before, "`turns` itself was changed"
    assert all_messages(told_late) == all_messages(turns), "other messages, or in another order"
    (mine, ended), (other, ended_late) = plans_of(turns), plans_of(told_late)
    parted = first_difference(mine, other)
    assert parted == turn, f"the ranks part in turn {parted}, not in {turn}"
    assert ended == ended_late
    differ = sum(a != b for a, b in zip(mine, other, strict=False))
    return f"told late in turn {turn}: {differ} of {len(mine)} plans differ, and all {ended} requests end"


def turns_with_requests(turns: Turns) -> list[int]:
    return [
        number
        for number, messages in enumerate(turns, 1)
        if any(isinstance(message, GenerateRequest) for message in messages)
    ]


@task("2c_break_input")
@pytest.mark.timeout(30)
def test_a_turn_too_late() -> None:
    turns = make_turns(seed=2, count=40, aborts=0.0)
    for turn in turns_with_requests(turns)[::5]:
        said = check_late(turns, turn)
    cost(said)


# ------------------------------------------------------------------ 2d, 2e, 2f


def states(*described: tuple[str, int]) -> list[RequestState]:
    """(rid, tokens of the prompt), in order of arrival."""
    return [
        RequestState.of(GenerateRequest(rid, pack_ids(range(length)), SamplingParams()), 10_000, ())
        for rid, length in described
    ]


def rids(order: Any, waiting: list[RequestState]) -> list[str]:
    before = list(waiting)
    ordered = order.order(waiting)
    assert waiting == before, "`waiting` itself was changed"
    return [state.rid for state in ordered]


def check_ranks_agree(name: str, seed: int, count: int) -> str:
    a, b = in_two_processes("scenarios:digests_with_order", name, "repairs", seed, count)
    parted = first_difference(a, b)
    assert parted is None, f"{name}: two ranks part in turn {parted}"
    return f"{len(a)} turns, alike in two processes"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["Tenants", "Aging", "Lottery"])
def test_the_suspects_part(name: str) -> None:
    """Not graded: what there is to repair."""
    a, b = in_two_processes("scenarios:digests_with_order", name, "suspects", 3, 300)
    parted = first_difference(a, b)
    assert parted is not None
    cost(f"{name} as it was: of {len(a)} turns the ranks part in turn {parted}")


@task("2d_set_order")
@pytest.mark.timeout(30)
def test_one_of_each_tenant_in_turn() -> None:
    waiting = states(*((rid, 5) for rid in ("alice-0", "alice-1", "bob-2", "carol-3", "bob-4", "alice-5")))
    wanted = ["alice-0", "bob-2", "carol-3", "alice-1", "bob-4", "alice-5"]
    assert rids(adapters.order_of("repairs", "Tenants"), waiting) == wanted
    assert rids(adapters.order_of("repairs", "Tenants"), []) == []


@task("2d_set_order")
@pytest.mark.timeout(100)
def test_ranks_agree_on_tenants() -> None:
    cost(check_ranks_agree("Tenants", 3, 300))


@task("2e_clock")
@pytest.mark.timeout(30)
def test_whoever_has_waited_long_goes_first() -> None:
    waiting = states(("a", 50), ("b", 10), ("c", 30))
    aging = adapters.order_of("repairs", "Aging", 3)
    for _ in range(3):
        assert rids(aging, waiting) == ["b", "c", "a"]
    assert rids(aging, waiting + states(("d", 1))) == ["a", "b", "c", "d"]
    assert rids(aging, states(("e", 7), ("f", 7), ("g", 6))) == ["g", "e", "f"]


@task("2e_clock")
@pytest.mark.timeout(100)
def test_ranks_agree_on_patience() -> None:
    cost(check_ranks_agree("Aging", 3, 300))


def check_lottery(seed: int, count: int) -> None:
    waiting = states(*((f"r{number}", 5) for number in range(count)))
    mine, other = (adapters.order_of("repairs", "Lottery", seed) for _ in range(2))
    shuffles = [rids(mine, waiting) for _ in range(5)]
    random.random()
    assert [rids(other, waiting) for _ in range(5)] == shuffles, "two ranks with the same seed draw other lots"
    assert all(sorted(shuffle) == sorted(state.rid for state in waiting) for shuffle in shuffles)
    assert len(set(map(tuple, shuffles))) == 5, "the same shuffle came twice"
    assert rids(adapters.order_of("repairs", "Lottery", seed + 1), waiting) != shuffles[0]


@task("2f_randomness")
@pytest.mark.timeout(30)
def test_lots_depend_on_the_seed_alone() -> None:
    before = random.getstate()
    check_lottery(seed=7, count=20)
    random.setstate(before)
    adapters.order_of("repairs", "Lottery", 7).order(states(("a", 1), ("b", 1)))
    assert random.getstate() == before, "it draws from the random numbers of the whole process"


@task("2f_randomness")
@pytest.mark.timeout(100)
def test_ranks_agree_on_lots() -> None:
    cost(check_ranks_agree("Lottery", 3, 300))
