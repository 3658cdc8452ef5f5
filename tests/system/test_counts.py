"""What a decode turn with nothing new sends, exactly: each message once, where it is sent."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from common.batch import BatchPlan, Turn
from common.messages import pack_ids
from evolution import Engine
from report.trace import ThreadTrace, load, working_turns

NAMES = ("messages", "pickles", "copies", "collectives")
STEPS = {"level": 1, "era": 10}  # decode steps of a turn of rpyc, with a call each where rank 0 plans
PLAN = Turn(BatchPlan(50, [], pack_ids([0]), pack_ids([5])), stop=False)


def traced(folder: Path, stage: str, constants: str, scheduling: str, tp_size: int) -> list[ThreadTrace]:
    how = {"stage": stage, "constants": constants, "scheduling": scheduling, "tp_size": tp_size, "idle": "block"}
    with Engine(device="sim", trace_dir=str(folder), **how) as engine:
        params = {"max_new_tokens": 101, "ignore_eos": True, "temperature": 0}
        (stream,) = engine.submit(engine.make_requests("Hello", params, stream=True)[1])
        stream.result()
    return load(folder)


def usual_counts(thread: ThreadTrace) -> tuple[int, ...]:
    """Of the turns between the prefill and the end. What tells the ranks what to do, as in most turns: by reference an
    answer may come when the next call has begun. And what goes on from there, the least: now and then rank 0 also
    reports its load."""
    numbers = (working_turns(thread) or list(range(1, len(thread.turns))))[2:-2]
    turns = [thread.turns[number] for number in numbers]
    to_ranks = Counter(tuple(turn.distribute_counts[name] for name in NAMES) for turn in turns).most_common(1)[0][0]
    onward = min(tuple(turn.counts[name] - turn.distribute_counts[name] for name in NAMES) for turn in turns)
    return tuple(a + b for a, b in zip(to_ranks, onward, strict=True))


def usual_bytes(thread: ThreadTrace) -> int:
    """By which the ranks of a replica are told what to do."""
    return Counter(thread.turns[n].distribute_counts["bytes"] for n in working_turns(thread)).most_common(1)[0][0]


CASES = [
    pytest.param(constants, scheduling, tp_size, marks=[pytest.mark.slow] if tp_size == 4 else [])
    for constants in ("level", "era")
    for scheduling in ("replicated", "rank0")
    for tp_size in (2, 4)
]


@pytest.mark.parametrize("one_stage", ["broadcast", "peer"])
@pytest.mark.parametrize(("constants", "scheduling", "tp_size"), CASES)
def test_a_broadcast(tmp_path: Path, one_stage: str, constants: str, scheduling: str, tp_size: int) -> None:
    """Once for each rank that receives it, and by rank 0 alone; then the tokens, to the detokenizer and to main."""
    threads = {thread.process: thread for thread in traced(tmp_path, one_stage, constants, scheduling, tp_size)}
    others = tp_size - 1
    era = int(constants == "era")  # its channels carry pickles
    copies = {"broadcast": 2, "peer": 1}[one_stage]
    if scheduling == "replicated":  # a single 0
        expected, sent = (others + 1, era, 0, 1), 8 * others
    else:  # the length of the plan, and the plan
        content = len(pickle.dumps(PLAN) if era else msgspec.msgpack.encode(PLAN))
        expected, sent = (2 * others + 1, 2 * era, era * copies, 2), (8 + content) * others
    ranks = [thread for name, thread in threads.items() if " TP" in name]
    assert len(ranks) == tp_size
    assert usual_counts(ranks[0]) == expected
    assert usual_bytes(ranks[0]) == sent
    for rank in ranks[1:]:
        assert sum(rank.turns[number].counts["messages"] for number in range(len(rank.turns))) == 0
    assert usual_counts(threads["evo-detokenizer"]) == (1, era, 0, 0)


@pytest.mark.parametrize(("constants", "scheduling", "tp_size"), CASES)
def test_rpyc(tmp_path: Path, constants: str, scheduling: str, tp_size: int) -> None:
    """Each call and each answer. By reference both ends send three more: the router answers the rank's pulling of the
    argument and its dropping of it, and drops the result; the rank does the one and the other, and answers the third.
    Rank 0's result is pulled, too."""
    threads = {thread.process: thread for thread in traced(tmp_path, "rpyc", constants, scheduling, tp_size)}
    era = int(constants == "era")
    steps = STEPS[constants]
    to_all, to_rank0 = (1, 0) if scheduling == "replicated" else (steps, 1)  # calls of a turn
    each, pull = (4, 1) if era else (1, 0)
    calls_of_rank0 = to_all + to_rank0
    calls = tp_size * to_all + to_rank0
    router = (each * calls + pull * calls_of_rank0 + 1, era * (calls + 1), 0, 0)
    assert usual_counts(threads["evo-router"]) == router
    assert usual_counts(threads["evo-rpyc TP0"]) == ((each + pull) * calls_of_rank0, era * calls_of_rank0, 0, 0)
    for rank in range(1, tp_size):  # whose turn is one call
        assert usual_counts(threads[f"evo-rpyc TP{rank}"]) == (each, 0, 0, 0)
    if constants == "level" and scheduling == "replicated":  # an empty list, and what rpyc writes around it
        sent = usual_bytes(threads["evo-router"])
        assert sent % tp_size == 0 and 1 < sent / tp_size < 100
    assert usual_counts(threads["evo-detokenizer"]) == (1, era, 0, 0)


@pytest.mark.parametrize(
    ("one_stage", "dispatcher"), [("broadcast", "evo-controller-multi"), ("peer", "evo-dp-controller")]
)
def test_main_and_a_dispatcher(tmp_path: Path, one_stage: str, dispatcher: str) -> None:
    """A request is one message of each; what controls is one to every replica. A queue pickles, whatever the codec."""
    with Engine(device="sim", stage=one_stage, dp_size=2, trace_dir=str(tmp_path)) as engine:
        engine.generate(["Hello"] * 5, {"max_new_tokens": 2})
        engine.stats()
    totals = {
        thread.process: [sum(turn.counts[name] for turn in thread.turns) for name in ("messages", "pickles", "bytes")]
        for thread in load(tmp_path)
        if thread.process == dispatcher or (thread.process, thread.thread) == ("main", "caller")
    }
    assert totals["main"][:2] == [5 + 1 + 1, 0], "five requests, stats, stop"
    messages = 5 + 2 * (1 + 1)
    assert totals[dispatcher][:2] == [messages, messages if one_stage == "broadcast" else 0]
    assert totals[dispatcher][2] > totals["main"][2] > 5 * 20
