"""Looking at an engine from outside, as its user and the operating system see it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from common.processes.stacks import GONE, process_state
from evolution.engine import Engine

NOTICE_LIMIT = 1.0  # s from a death to the last caller's error
ORPHAN_LIMIT = 3.0  # s from the error until the last process is gone
WATCHDOG = 2.0  # s; the engine's default is 60
STARTUP = 10.0  # s without progress, where a start is to hang; the engine's default is 30
SETTINGS: dict[str, Any] = {
    "model_path": "tiny",
    "max_total_tokens": 8192,
    "chunked_prefill_size": 16,  # so that a prompt is prefilled over many turns
    "watchdog_timeout": WATCHDOG,
}


def pids_of(engine: Engine) -> dict[str, int]:
    """Name -> pid of every process of a running engine, but the main one."""
    return {node.name: node.pid for report in engine.processes for node in report.walk()}


def starting_pid(name: str, timeout: float = 60.0) -> int:
    """Of the process of that name, as soon as there is one below this process. TimeoutError if none comes."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            try:
                if process.cmdline()[:1] == [name]:
                    return process.pid
            except psutil.Error:
                continue
        time.sleep(0.01)
    raise TimeoutError(f"no process {name} was started in {timeout:.0f} s")


def children() -> set[int]:
    """pids below this process, without multiprocessing's resource tracker."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if "resource_tracker" not in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def lives(pid: int) -> bool:
    return process_state(pid) not in GONE


def wait_until_dead(pids: set[int], timeout: float) -> int:
    """How many still live after so many seconds."""
    deadline = time.monotonic() + timeout
    while (left := sum(map(lives, pids))) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def run_folders() -> set[str]:
    """Of this process's engines."""
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"evo-run-{os.getpid()}-*")}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
