"""What a child's end says, and ending one with all below it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from common.processes.child import EXIT_NO_MAIN_GUARD
from common.processes.failures import Failure
from common.processes.spawning import Child

if TYPE_CHECKING:
    import psutil


def ended_well(child: Child) -> bool:
    child.process.join(1)
    return child.process.exitcode in (0, None)


def death_of(child: Child) -> Failure:
    """The failure that a child's end is, when it has said nothing itself."""
    child.process.join(1)  # it has closed its sentinel, and may not have been reaped yet
    code = child.process.exitcode
    when = "" if child.ready else " before it was ready"
    if code == EXIT_NO_MAIN_GUARD:
        cause = (
            "could not start, because importing your script built another Engine: "
            "put the code that uses Engine under `if __name__ == '__main__':`"
        )
        return Failure("Engine", os.getpid(), cause, 0, time.monotonic())
    if code is None:  # somebody else reaped it, or SIGCHLD is ignored
        cause, severity = f"ended, nobody knows how{when}", 3
    elif code < 0:
        cause, severity = f"was killed by {signal.Signals(-code).name}{when}", 0
    else:
        cause, severity = f"exited with code {code}{when}", 3
    return Failure(child.name, child.process.pid or 0, cause, severity, time.monotonic())


def kill_tree(child: Child) -> list[psutil.Process]:
    """Kill a child; whoever is below it follows by PDEATHSIG. Returns all of them, as they were before."""
    import psutil  # at the end, not while starting

    if child.gone:
        return []
    try:
        process = psutil.Process(child.process.pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    child.process.kill()
    return tree


def lives(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
