"""Who plans a turn, and what that costs."""

from __future__ import annotations

import time

import numpy as np

from common.args import EngineArgs
from common.run_folder import run_folder
from experiments.bench import overlap
from experiments.bench.distribute_turns import PLANNING
from experiments.bench.engines import finish, start
from experiments.bench.scheduling import MOST_RUNNING, make, measure
from experiments.claims.bounds import at_least, between, exactly, ratio
from experiments.claims.lives import Life, life
from experiments.claims.once import once
from experiments.claims.trial import Samples, Trial
from report.trace import ThreadTrace, load, parts_of, working_turns

WINDOWS = 7
AT_ONCE = MOST_RUNNING + 136  # requests: so many wait that planning is work
AGREE = (
    exactly("ranks that hold a scheduler and plan", 2),
    exactly("turns that one rank ran more than the other, their plans compared in each", 0),
)


def _both_plan(*lives: Life) -> Samples:
    """An engine whose ranks' plans differ in a turn has ended there: it has no life."""
    turns = [[len(working_turns(seen.rank(rank))) for rank in (0, 1)] for seen in lives]
    return [[seen.planning for seen in lives], [abs(a - b) for a, b in turns]]


def _in_0_1_5() -> Samples:
    return _both_plan(life("rpyc", 2, constants="era", check=1))


def _before_and_after() -> Samples:
    return _both_plan(life("rpyc", 2, constants="era", check=1), life("broadcast", 2, constants="era", check=1))


def _in_0_2_0() -> Samples:
    return _both_plan(life("broadcast", 2, constants="era", check=1))


# ---------------------------------------------------------------------- what it costs


def _times_tp() -> Samples:
    (plans2, cpu2), (plans4, cpu4) = planning(2), planning(4)
    return [[plans2], [plans4], cpu2, cpu4]


@once
def planning(tp: int) -> tuple[float, list[float]]:
    """Plans made by all ranks over those of rank 0; and of each window the CPU time of all ranks' planning over that of
    rank 0's."""
    with run_folder() as folder:
        args = EngineArgs(
            stage="peer",
            tp_size=tp,
            device="sim",
            schedule_policy="dfs-weight",
            max_running_requests=MOST_RUNNING,
            trace_dir=str(folder),
        )
        with start(args) as engine:
            windows = []
            for window in range(1 + WINDOWS):
                requests = make(engine, AT_ONCE, np.random.default_rng(window))
                began = time.perf_counter_ns()
                finish(engine, requests)
                windows.append((began, time.perf_counter_ns()))
        ranks = [thread for thread in load(folder) if thread.plans]
    by_window = [[_planning_cpu(rank.within(*window)) for rank in ranks] for window in windows[1:]]
    turns = [len(working_turns(rank)) for rank in ranks]
    first = next(place for place, rank in enumerate(ranks) if rank.process.endswith(" TP0"))
    return sum(turns) / turns[first], [sum(cpus) / cpus[first] for cpus in by_window]


def _planning_cpu(rank: ThreadTrace) -> int:
    parts = parts_of(rank, working_turns(rank))
    return sum(parts[name][1] for name in PLANNING if name in parts)


def _once_for_all() -> Samples:
    arms = {"replicated": {}, "rank0": {}}
    for name in arms:
        (arms[name],) = measure({"stage": "peer", "scheduling": name, "tp_size": 2}, [(16, 0)], "lpm", 0)
    every, once = arms["replicated"], arms["rank0"]
    return [[every["collectives"]], [once["collectives"]], [once["bytes"] / every["bytes"]]]


# ---------------------------------------------------------------------- on a thread of its own


def _on_another_thread() -> Samples:
    threads, tokens = [], []
    for ahead in (False, True):
        with run_folder() as folder:
            args = EngineArgs(stage="peer", overlap=ahead, device="sim", trace_dir=str(folder))
            with start(args) as engine:
                tokens.append(overlap.measure(engine, [16], engine.model_config.vocab_size, 0)[1])
            threads.append([t for t in load(folder) if t.process.endswith(" TP0") and len(t.turns) > 1])
    different = sum(a != b for a, b in zip(*tokens, strict=True))
    both = sum(thread.plans and any(turn.has("forward") for turn in thread.turns) for thread in threads[1])
    return [[len(threads[0])], [len(threads[1])], [both], [different]]


TRIALS = [
    Trial(2, "0.1.5 at TP 2, its plans compared turn by turn", AGREE, 4.0, _in_0_1_5),
    Trial(20, "0.1.5 and 0.2.0 at TP 2, before and after #646", AGREE, 3.0, _before_and_after),
    Trial(45, "0.2.0 at TP 2: rank 0's process and the other rank's", AGREE, 1.0, _in_0_2_0),
    Trial(
        43,
        "peer, with and without --overlap, traced: 48 requests of 128 tokens",
        (
            exactly("threads of a rank that run turns, normal loop", 1),
            exactly("threads of a rank that run turns, with overlap", 2),
            exactly("threads that both plan and run forwards, with overlap", 0),
            exactly("requests whose tokens differ", 0),
        ),
        5.0,
        _on_another_thread,
    ),
    Trial(
        47,
        "peer at TP 2, 16 requests at once: every rank plans, or rank 0 for all",
        (
            between("broadcasts a turn, every rank plans", 1, 1.2),
            between("broadcasts a turn, rank 0 plans (a length and a plan)", 1.9, 2.1),
            at_least("bytes a turn, rank 0 plans over every rank plans", 1.5),
        ),
        5.0,
        _once_for_all,
    ),
    Trial(
        56,
        f"peer at TP 2 and TP 4, {AT_ONCE} requests at once, {WINDOWS} times, traced",
        (
            exactly("plans that are made for a turn, TP 2", 2),
            exactly("plans that are made for a turn, TP 4", 4),
            ratio("CPU time of planning, all ranks over rank 0, TP 2", 1.5, 3),
            ratio("CPU time of planning, all ranks over rank 0, TP 4", 3, 6),
        ),
        19.0,
        _times_tp,
    ),
]
