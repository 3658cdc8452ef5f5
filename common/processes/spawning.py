"""Starting one child: its pipe, its line on the board, its environment."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

from common.processes.board import Board
from common.processes.child import child_main
from common.processes.failures import Failure, ReadyReport


@dataclass
class Child:
    """A child as its parent knows it. replica: that it belongs to, where a replica may be lost on its own."""

    name: str
    process: multiprocessing.process.BaseProcess
    status: connection.Connection
    replica: int | None = None
    ready: ReadyReport | None = None
    reported: Failure | None = None
    gone: bool = False


def spawn(
    name: str, target: str, kwargs: dict[str, Any], env: Mapping[str, str], replica: int | None, board: Board
) -> Child:
    """On the thread that starts all children of this process."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    # Children inherit the mask: a ctrl-C that arrives before a child can ignore it must not hit its start-up.
    # Starting the resource tracker, which the first start does, would undo it.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    slot = board.claim(name)
    process = context.Process(
        target=child_main, args=(name, os.getpid(), time.monotonic(), target, kwargs, writer, board, slot), name=name
    )
    # Set before the child exists: it may import torch with the user's script, before any code of ours runs.
    with _environment(env), _importable_main():
        process.start()
    board.pid_of(slot, process.pid)
    # The parent's copy of the writer would keep the pipe open after the child's death and hide it.
    writer.close()
    return Child(name, process, reader, replica)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _importable_main() -> Iterator[None]:
    """spawn has a child import the parent's main script. Fed through stdin, as in a shell or an editor, there is none
    to import, but Python 3.11 and 3.12 try all the same: hide its name meanwhile."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file
