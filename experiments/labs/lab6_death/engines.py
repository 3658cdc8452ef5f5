"""Real engines that lose a process, and what becomes of it. Given; nothing to edit."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from common.processes.board import Line
from common.processes.stacks import process_state
from evolution import Engine, EngineError

SETTINGS: dict[str, Any] = {
    "device": "sim",
    "tp_size": 2,
    "max_total_tokens": 4096,
    "scheduling": "replicated",
    "log_level": "critical",
}
HANG_LIMIT = 1.5  # s after which the watchdog speaks, where nobody else does
LONG = {"max_new_tokens": 3000, "ignore_eos": True}


def main_was_told(stage: str, dp_size: int, rank: int, how: str) -> tuple[bool, str]:
    """Whether it was anybody but the watchdog who told the main process, and what it was told."""
    victim = f"TP{rank}" if dp_size == 1 else f"DP0 TP{rank}"
    settings = SETTINGS | {"stage": stage, "dp_size": dp_size, "supervision": "era", "era_hang_limit": HANG_LIMIT}
    if how == "raises in a turn":
        settings["fault"] = f"{victim}: raise at turn 20"
    try:
        with Engine(**settings) as engine:
            if how == "is killed while idle":
                engine.generate(input_ids=[[1, 2, 3]] * dp_size, sampling_params={"max_new_tokens": 2})
                name = next(name for name in pids_of(engine) if name.endswith(victim))
                os.kill(pids_of(engine)[name], signal.SIGKILL)
                _wait_until_gone(pids_of(engine)[name])
            engine.generate(input_ids=[[1, 2, 3]] * dp_size, sampling_params={**LONG, "max_new_tokens": 300})
    except EngineError as error:
        said = str(error).partition("\n")[0]
        return "no turn was finished" not in said, said
    raise AssertionError(f"{stage}, {dp_size} replicas: the engine went on without {victim}")


def pids_of(engine: Engine) -> dict[str, int]:
    """Name -> pid of every process of a running engine, but the main one."""
    return {node.name: node.pid for report in engine.processes for node in report.walk()}


def board_of(engine: Engine) -> list[Line]:
    """What its processes say of themselves at this moment."""
    return engine._stage._board.lines()


def two_looks(engine: Engine, seconds: float) -> tuple[list[Line], list[Line]]:
    earlier = board_of(engine)
    time.sleep(seconds)
    return earlier, board_of(engine)


def _wait_until_gone(pid: int) -> None:
    while process_state(pid) not in ("", "Z"):
        time.sleep(0.01)
