"""What the children of this lab's tests do. Given; nothing to edit. None of them lives longer than LONGEST seconds.

`up` is the writing end of a pipe, on which an actor says its pid when it plays its part.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import struct
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from common.processes import Failure

LONGEST = 40.0
PR_SET_PDEATHSIG = 1
spawn = multiprocessing.get_context("spawn")


def end(how: int) -> None:
    """how: an exit code, or the negative of a signal."""
    if how < 0:
        os.kill(os.getpid(), -how)
        time.sleep(LONGEST)
    os._exit(how)


def sleep(up: Connection) -> None:
    up.send(os.getpid())
    time.sleep(LONGEST)


def end_after(up: Connection, seconds: float, how: int) -> None:
    up.send(os.getpid())
    time.sleep(seconds)
    end(how)


# ---------------------------------------------------------------------- 6c


def speak(writer: Connection, words: list[Any], torn: bool, how: int) -> None:
    """Says these words; `torn`: and the beginning of one more."""
    for word in words:
        writer.send(word)
    if torn:
        os.write(writer.fileno(), struct.pack("!i", 1000) + b"the first of a thousand bytes")
    end(how)


# ---------------------------------------------------------------------- 6d, 6e


def middle(up: Connection, late: bool) -> None:
    """Starts a child that is to die with it. late: one that asks for it only when this process is gone."""
    child = spawn.Process(target=lower, args=(up, os.getpid(), late))
    child.start()
    time.sleep(LONGEST)


def lower(up: Connection, parent: int, late: bool) -> None:
    from .adapters import die_with_parent

    if late:
        up.send(os.getpid())
        while os.getppid() == parent:
            time.sleep(0.005)
    try:
        die_with_parent(parent)
    except BaseException as error:
        up.send(f"raised {type(error).__name__}: {error}")
        raise
    up.send("goes on" if late else os.getpid())
    time.sleep(LONGEST)


def bound(up: Connection) -> None:
    """Dies when the thread that started it ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sleep(up)


# ---------------------------------------------------------------------- 6g


def rank(status: Connection, up: Connection, peer: Connection) -> None:
    """Waits for its peer; when that is lost, says so and ends."""
    up.send(os.getpid())
    try:
        peer.recv()
    except (EOFError, OSError) as error:
        cause = f"raised PeerLost: {error!r}"
        status.send(Failure("the one that lost its peer", os.getpid(), cause, 2, time.monotonic()))
    end(1)


def report(status: Connection, up: Connection, failure: Failure | None, seconds: float, how: int) -> None:
    """After so many seconds says this, with its own pid, and ends."""
    up.send(os.getpid())
    time.sleep(seconds)
    if failure is not None:
        status.send(Failure(failure.name, os.getpid(), failure.cause, failure.severity, time.monotonic()))
    end(how)


# ---------------------------------------------------------------------- 6h


def tree(up: Connection, depth: int, width: int, respawns: bool) -> None:
    """Ignores SIGTERM, and so do all below. respawns: whoever has children starts one anew when it dies."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(int(LONGEST))  # ends whoever waits for children, too
    below = [_grow(up, depth, width, respawns) for _ in range(width)] if depth else []
    up.send(os.getpid())
    while below:
        wait([child.sentinel for child in below])
        for index, child in enumerate(below):
            if not child.is_alive():
                below[index] = _grow(up, depth, width, respawns) if respawns else child
        if not respawns:
            break
    time.sleep(LONGEST)


def _grow(up: Connection, depth: int, width: int, respawns: bool) -> Any:
    """Forked, for a tree of spawned processes takes seconds to grow."""
    child = multiprocessing.get_context("fork").Process(target=tree, args=(up, depth - 1, width, respawns))
    child.start()
    return child
