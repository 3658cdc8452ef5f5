"""Who hears of a dead rank, in each stage, as its version noticed it (`--supervision era`), and as this suite does."""

from __future__ import annotations

import os
import signal
import time

from common.args import EngineArgs
from evolution.engine import Engine
from experiments.bench.engines import start
from experiments.claims.bounds import exactly
from experiments.claims.trial import Samples, Trial
from experiments.faults.table import Case, run_case

PATIENCE = 1.5  # s: whoever was not told by then is not told
LONG = {"max_new_tokens": 900, "temperature": 0, "ignore_eos": True}
RANK_1 = {"rpyc": "evo-rpyc TP1", "broadcast": "evo-tp-server TP1", "peer": "evo-peer TP1"}


def told(stage: str, fault: str, dp: int = 1) -> int:
    """1 if the callers of a decoding engine heard of this fault, 0 if they wait and the engine says that it is well."""
    with start(_settings(stage, dp, fault)) as engine:
        streams = engine.submit(engine.make_requests(["Hello"] * (2 * dp), LONG)[1])
        failing = [stream for index, stream in enumerate(streams) if dp == 1 or f"DP{index % dp}" in fault]
        failing[0].done.wait(PATIENCE)
        return _known(engine)


def told_when_idle(stage: str) -> int:
    """The same of rank 1's death while no request is out: the loops spin, as they did."""
    with start(_settings(stage, 1, None, idle="spin")) as engine:
        engine.generate("Hello", {"max_new_tokens": 2})
        victim = next(n for report in engine.processes for n in report.walk() if n.name == RANK_1[stage])
        os.kill(victim.pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while not _known(engine) and time.monotonic() < deadline:
            time.sleep(0.01)
        return _known(engine)


def _known(engine: Engine) -> int:
    return int(not engine.health().ok)


def _settings(stage: str, dp: int, fault: str | None, idle: str | None = None) -> EngineArgs:
    return EngineArgs(
        stage=stage,
        tp_size=2 if dp == 1 else 1,
        dp_size=dp,
        model_path="tiny",
        max_total_tokens=4096,
        supervision="era",
        era_hang_limit=60.0,
        fault=fault,
        idle=idle,
    )


def _who_hears() -> Samples:
    killed, raised, first = "TP1: die at turn 5", "TP1: raise at turn 5", "TP0: raise at turn 5"
    full = [run_case(Case(stage, 2, 1, "kill", name, "decode")) for stage, name in RANK_1.items()]
    return [
        [told("rpyc", killed), told("rpyc", raised)],
        [told("broadcast", raised)],
        [told("broadcast", first)],
        [told_when_idle("broadcast"), told_when_idle("peer")],
        [told("peer", raised)],
        [told("peer", killed)],
        [told(stage, "DP0 TP0: raise at turn 5", dp=2) for stage in ("broadcast", "peer")],
        [sum(row.noticed is not None and row.noticed <= row.case.limit for row in full)],
        [sum(row.orphans for row in full)],
    ]


TRIALS = [
    Trial(
        60,
        "rank 1 or rank 0 is killed or raises, TP 2 or DP 2, in engines that notice what their version did; then full",
        (
            exactly("callers told, 0.1.5, a rank is killed or raises", 0),
            exactly("callers told, 0.2.0, rank 1 raises", 0),
            exactly("callers told, 0.2.0, rank 0 raises", 1),
            exactly("callers told, 0.2.0 and 0.4.0, rank 1 is killed when idle, so that the broadcast breaks", 1),
            exactly("callers told, 0.4.0, rank 1 raises", 1),
            exactly("callers told, 0.4.0, rank 1 is killed within a forward", 0),
            exactly("callers told, 2 replicas, 0.2.0 and 0.4.0, a rank raises", 0),
            exactly("stages of 3 in which all are told within 1 s, with full supervision", 3),
            exactly("processes left after that", 0),
        ),
        34.0,
        _who_hears,
    ),
]
