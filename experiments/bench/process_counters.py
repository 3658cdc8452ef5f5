"""What the system counts of a running engine's processes, main among them: CPU time and context switches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from evolution.engine import Engine


def pids_of(engine: Engine) -> list[int]:
    return [os.getpid(), *(node.pid for report in engine.processes for node in report.walk())]


def cpu_seconds(pid: int) -> float:
    """Time on a core of all its threads, in ns from the scheduler: cpu_times counts in ticks of 10 ms, too coarse."""
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in _threads(pid)) / 1e9


def context_switches(pid: int) -> tuple[int, int]:
    """Voluntary and involuntary ones of all its threads so far."""
    voluntary = involuntary = 0
    for thread in _threads(pid):
        for line in (thread / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            voluntary += int(value) if name == "voluntary_ctxt_switches" else 0
            involuntary += int(value) if name == "nonvoluntary_ctxt_switches" else 0
    return voluntary, involuntary


def _threads(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").iterdir()
