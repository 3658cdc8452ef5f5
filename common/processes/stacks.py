"""Where a process stands: its threads' stacks, asked for from outside, and written by C code that needs no interpreter.

SIGUSR1 writes them to the process's stderr, for a person at a terminal. SIGUSR2 writes them into an unnamed file of the
process's own, whose descriptor stands on the board: so the main process can read them and say whose they are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

from common.processes.board import STACKS, Line, Slot

STOPPED = ("T", "t")  # by SIGSTOP, by a debugger
GONE = ("", "Z", "X")
SILENT = STOPPED + GONE


def register_stacks(slot: Slot) -> None:
    """In the process itself, once."""
    fd = os.memfd_create("stacks", os.MFD_CLOEXEC)
    faulthandler.register(signal.SIGUSR2, file=fd, all_threads=True)
    slot.cells[STACKS] = fd


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP or a debugger. False when it is gone."""
    return process_state(pid) in STOPPED


def process_state(pid: int) -> str:
    """The letter that /proc shows, or "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def read_stacks(lines: list[Line], timeout: float = 1.0) -> str:
    """The stacks of those of these processes that can still answer, each under its name."""
    asked = []
    for line in lines:
        if line.stacks and process_state(line.pid) not in SILENT:
            with contextlib.suppress(ProcessLookupError):
                os.kill(line.pid, signal.SIGUSR2)
                asked.append(line)
    deadline = time.monotonic() + timeout
    parts = []
    for line in asked:
        text = ""
        # A dump is written in many pieces: it is whole when it has not grown from one look to the next.
        while (now := _written(line)) != text or not now:
            text = now
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        parts.append(f"[{line.name} (pid {line.pid})]\n{text.rstrip() or 'no answer'}")
    return "\n\n".join(parts)


def _written(line: Line) -> str:
    try:
        return Path(f"/proc/{line.pid}/fd/{line.stacks}").read_text(errors="replace")
    except OSError:
        return ""
