"""An idle engine whose loops spin, as they did in 0.2.0 and 0.4.0: what several trials look at."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from common.args import EngineArgs
from evolution.engine import Engine
from experiments.bench.engines import children_of, start
from experiments.bench.idle import measure_window
from experiments.claims.lives import send
from experiments.claims.once import once

SILENT = 1.5  # s without a request
STOPPED = 0.3  # s
PAIRS = 5  # of a window with all ranks, and one with a stopped rank


@dataclass(frozen=True)
class Spinning:
    """`broadcasts_when_idle`: a turn. `cores`: run on without a request, or waited for, since a process that spins on a
    busy machine gets less than it takes. `stopped`: turns of rank 0 while rank 1 was stopped, over those of a window as
    long in which it was not."""

    broadcasts_when_idle: float
    broadcasts_of_a_list: float
    cores: float
    stopped: list[float]


def settings(stage: str, constants: str) -> EngineArgs:
    return EngineArgs(stage=stage, tp_size=2, constants=constants, scheduling="replicated", device="sim")


@once
def spinning(stage: str) -> Spinning:
    with start(settings(stage, "era")) as engine:
        send(engine, 2, 2)
        before = engine.stats()[0]
        waited = waited_for_cores(children_of(engine))
        cores = measure_window(children_of(engine), SILENT)["cores"]
        cores += (waited_for_cores(children_of(engine)) - waited) / SILENT
        after = engine.stats()[0]
        # Of the turns from one look at the counts to the next all are empty but that of the second look.
        turns, broadcasts, empty = (after[n] - before[n] for n in ("loop_turns", "broadcasts", "empty_broadcasts"))
        victim = next(n.pid for report in engine.processes for n in report.walk() if n.name.endswith(" TP1"))
        stopped = [_turns(engine, victim) / _turns(engine, None) for _ in range(PAIRS)]
    return Spinning(empty / (turns - 1), (broadcasts - empty) / (turns - empty), cores, stopped)


def waited_for_cores(pids: list[int]) -> float:
    """s that the threads of these processes were ready to run and did not so far; 0 where the kernel does not say."""
    waited = 0.0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                waited += int((task / "schedstat").read_text().split()[1]) / 1e9
    return waited


def _turns(engine: Engine, stopped: int | None) -> int:
    """Of rank 0, in STOPPED seconds; meanwhile this process is stopped."""
    before = engine.stats()[0]["loop_turns"]
    if stopped:
        os.kill(stopped, signal.SIGSTOP)
    try:
        time.sleep(STOPPED)
    finally:
        if stopped:
            os.kill(stopped, signal.SIGCONT)
    return engine.stats()[0]["loop_turns"] - before


@once
def blocking_cores(stage: str) -> float:
    """What the engine burns when it blocks."""
    with start(settings(stage, "level")) as engine:
        send(engine, 2, 2)
        time.sleep(0.5)
        return measure_window(children_of(engine), SILENT)["cores"]
