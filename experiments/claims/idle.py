"""Loops that look for requests without waiting for them."""

from __future__ import annotations

import time
from bisect import bisect_right

from common.args import EngineArgs
from common.run_folder import run_folder
from evolution.engine import Engine
from experiments.bench.engines import start
from experiments.claims.bounds import at_least, at_most, exactly
from experiments.claims.spinning import blocking_cores, spinning
from experiments.claims.trial import Samples, Trial
from report.trace import load

BURST = 16
BURSTS = 5
LONG_PROMPT = 2000  # tokens, which take a turn long enough that the burst comes within it


def _waits_for_the_late_one() -> Samples:
    return [spinning("broadcast").stopped + spinning("peer").stopped]


def _takes_all_that_waits() -> Samples:
    return [
        turns_for_a_burst(),
        [spinning(stage).cores for stage in ("broadcast", "peer")],
        [blocking_cores(stage) for stage in ("broadcast", "peer")],
    ]


def turns_for_a_burst() -> list[int]:
    """In how many turns of rank 0 the 16 requests were taken in that came while it was in a turn, of each burst."""
    with run_folder() as folder:
        args = EngineArgs(
            stage="broadcast", tp_size=2, device="sim", sim_profile="h100-llama3-8b", trace_dir=str(folder)
        )
        with start(args) as engine:
            bursts = [_burst(engine, number) for number in range(BURSTS)]
        (rank0,) = (thread for thread in load(folder) if thread.process.endswith(" TP0"))
    begins = [turn.begin for turn in rank0.turns[1:]]
    turn_of = {r.value: bisect_right(begins, r.wall_ns) for r in rank0.requests if r.name == "received"}
    return [len({turn_of[number] for number in numbers}) for numbers in bursts]


def _burst(engine: Engine, number: int) -> list[int]:
    """The numbers in the ids of the 16."""
    params = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}
    long = [[(number + place) % 250 + 1 for place in range(LONG_PROMPT)]]
    first = engine.make_requests(None, params, long)[1]
    others = engine.make_requests(None, params, [[number + 1, place + 1] for place in range(BURST)])[1]
    streams = engine.submit(first)
    time.sleep(0.01)  # its turn has begun
    streams += engine.submit(others)
    for stream in streams:
        stream.result()
    return [int(stream.rid.removeprefix("r")) for stream in streams[1:]]


TRIALS = [
    Trial(
        23,
        "idle engines of 0.2.0 and 0.4.0, TP 2; rank 1 is stopped by SIGSTOP while no forward runs",
        (at_most("turns of rank 0 while rank 1 is stopped, over those while it is not", 0.2),),
        1.0,
        _waits_for_the_late_one,
    ),
    Trial(
        24,
        f"{BURST} requests that come within a turn, {BURSTS} times, traced; cores burned by an idle engine at TP 2",
        (
            exactly(f"turns in which the {BURST} are taken in", 1),
            at_least("cores that an idle engine runs on or waits for, 0.2.0 and 0.4.0, where nothing sleeps", 0.8),
            at_most("cores that it runs on, the same stages where the loop blocks", 0.05),
        ),
        10.0,
        _takes_all_that_waits,
    ),
]
