"""The hidden tests of lab 2: other seeds, sizes and fields."""

from __future__ import annotations

import random

import msgspec
import pytest

from common.batch import RowExtras, RowSampling
from common.messages import pack_ids
from experiments.labs.marks import cost, task

from . import adapters
from .suspects import tenant_of
from .test_lab import (
    DECODE,
    PREFILL,
    SEQ,
    check_late,
    check_lottery,
    check_other,
    check_ranks_agree,
    check_search,
    check_two_processes,
    digests,
    rids,
    states,
    turns_with_requests,
)
from .turns import make_turns

EXTRAS = RowExtras(1, 0.1, 1.0, 0.0, 0.0, 0, b"", 2, b"", b"", False, 2, 0)


@task("2a_digest")
@pytest.mark.timeout(20)
def test_the_other_fields_count_too() -> None:
    for change in (
        {"prefix_slots": b""},
        {"sampling": None},
        {"sampling": RowSampling(0.5, 0.9, 20, 43)},
        {"sample": False},
    ):
        check_other(msgspec.structs.replace(PREFILL, prefill=[msgspec.structs.replace(SEQ, **change)]))
    check_other(msgspec.structs.replace(PREFILL, decode_slots=pack_ids([3])))
    check_other(msgspec.structs.replace(PREFILL, extras=[EXTRAS]))


@task("2a_digest")
@pytest.mark.timeout(20)
def test_a_turn_with_nothing_to_run_is_a_turn() -> None:
    idle_first, idle_second = digests([None, PREFILL, DECODE]), digests([PREFILL, None, DECODE])
    assert idle_first[0] != idle_second[0]


@task("2a_digest")
@pytest.mark.timeout(60)
def test_a_longer_script_in_two_processes() -> None:
    cost(check_two_processes(seed=21, count=400))


@task("2b_first_turn")
@pytest.mark.timeout(15)
def test_other_searches() -> None:
    rng = random.Random(22)
    for seed in range(150):
        ranks, turns = rng.randint(2, 9), rng.choice([2, 3, 7, 64, 65, 1000, 99_999])
        parted = {rng.randrange(ranks): rng.randint(1, turns + 1) for _ in range(rng.randint(0, 3))}
        said = check_search(ranks, turns, parted, seed)
    cost(said)


@task("2c_break_input")
@pytest.mark.timeout(60)
def test_every_turn_too_late() -> None:
    turns = make_turns(seed=23, count=60, aborts=0.0)
    while not turns[-1]:
        turns.pop()
    for turn in turns_with_requests(turns):
        said = check_late(turns, turn)
    cost(said)


@task("2d_set_order")
@pytest.mark.timeout(30)
def test_many_tenants() -> None:
    rng = random.Random(24)
    for _ in range(30):
        names = [f"tenant{rng.randrange(12)}-{number}" for number in range(rng.randint(1, 60))]
        waiting = states(*((name, 5) for name in names))
        of_tenant: dict[str, list[str]] = {}
        place = {}
        for state in waiting:
            of_tenant.setdefault(tenant_of(state), []).append(state.rid)
            place[state.rid] = len(of_tenant[tenant_of(state)])
        firsts = list(of_tenant)
        wanted = sorted(names, key=lambda name: (place[name], firsts.index(name.partition("-")[0])))
        assert rids(adapters.order_of("repairs", "Tenants"), waiting) == wanted


@task("2d_set_order")
@pytest.mark.timeout(100)
def test_ranks_agree_on_tenants_for_longer() -> None:
    cost(check_ranks_agree("Tenants", 25, 600))


@task("2e_clock")
@pytest.mark.timeout(30)
def test_patience_begins_anew() -> None:
    aging = adapters.order_of("repairs", "Aging", 2)
    both = states(("a", 9), ("b", 4))
    for _ in range(2):
        assert rids(aging, both) == ["b", "a"]
    assert rids(aging, both[1:]) == ["b"]
    for _ in range(2):
        assert rids(aging, both[1:] + states(("a", 9))) == ["b", "a"]
    assert rids(aging, states(("c", 1)) + both) == ["a", "b", "c"]
    nobody_waits_long = adapters.order_of("repairs", "Aging", 1000)
    assert all(rids(nobody_waits_long, both) == ["b", "a"] for _ in range(900))


@task("2e_clock")
@pytest.mark.timeout(100)
def test_ranks_agree_on_patience_for_longer() -> None:
    cost(check_ranks_agree("Aging", 26, 600))


@task("2f_randomness")
@pytest.mark.timeout(30)
def test_other_lots() -> None:
    for seed in (0, 1, 99):
        check_lottery(seed, 30)


@task("2f_randomness")
@pytest.mark.timeout(100)
def test_ranks_agree_on_lots_for_longer() -> None:
    cost(check_ranks_agree("Lottery", 27, 600))
