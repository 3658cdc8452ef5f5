"""The child's side: lifelines first, then the entry point; say `ready`, or say why not."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import zmq
from setproctitle import setproctitle

from common.processes.board import READY, Board, Slot
from common.processes.failures import FIRST_CAUSE_WINDOW, Failure, PeerLost, ProcessFailed, ReadyReport
from common.processes.stacks import register_stacks

if TYPE_CHECKING:
    from common.processes.supervisor import Supervisor

PR_SET_PDEATHSIG = 1
# A child whose script builds an Engine without a __main__ guard leaves with this code while importing the script.
EXIT_NO_MAIN_GUARD = 77
LINGER_MS = 1000  # how long a leaving process waits for its last messages to be taken


class ChildContext:
    """What a child's entry point is given: its name, `ready()`, and a supervisor for children of its own."""

    def __init__(
        self, name: str, status: connection.Connection, times: dict[str, float], board: Board, slot: Slot
    ) -> None:
        self.name = name
        self.board = board
        self.slot = slot  # this process's line on it
        self._times = times
        self._status = status
        self._status_lock = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._zmq: zmq.Context | None = None

    @property
    def zmq(self) -> zmq.Context:
        """The process's one ZMQ context; when the process leaves, what its sockets still hold is sent."""
        if self._zmq is None:
            self._zmq = zmq.Context()
        return self._zmq

    @property
    def supervisor(self) -> Supervisor:
        """Made on first use: only processes that have children run a supervisor's thread."""
        from common.processes.supervisor import Supervisor  # the two sides know each other

        if self._supervisor is None:
            self._supervisor = Supervisor(self._die, self.board)
        return self._supervisor

    def mark(self, step: str) -> None:
        """A step of the start is done: its time is reported with `ready`."""
        self._times[step] = time.monotonic()
        self.slot.beat()

    def ready(self, info: dict[str, Any] | None = None) -> None:
        """Wait until the children are ready, then tell the parent that this process and all below it can serve."""
        children = self._supervisor.wait_ready() if self._supervisor else []
        gc.freeze()  # modules stay for good: no later collection needs to walk them
        gc.enable()
        self.mark("ready")
        self.slot.cells[READY] = 1
        self._send(ReadyReport(self.name, os.getpid(), info or {}, self._times, children))

    def fail(self, error: BaseException) -> None:
        """Report an exception as this process's failure. Does not return."""
        lost_peer = isinstance(error, (PeerLost, EOFError, ConnectionError))
        if self._supervisor and (lost_peer or isinstance(error, ProcessFailed)):
            # The cause is probably a child's death: the supervisor's thread will name it and end this process.
            time.sleep(3 * FIRST_CAUSE_WINDOW)
        cause = f"raised {type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        self._die(Failure(self.name, os.getpid(), cause, 2 if lost_peer else 1, time.monotonic(), trace))

    def leave(self) -> None:
        """The orderly end, after the children's. Does not return: tearing down torch's modules takes a second."""
        if self._supervisor:
            self._supervisor.stop()
        if self._zmq:
            self._zmq.destroy(linger=LINGER_MS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _die(self, failure: Failure) -> None:
        self._send(failure)
        if self._supervisor:
            self._supervisor.kill()
        os._exit(1)

    def _send(self, message: ReadyReport | Failure) -> None:
        with self._status_lock, contextlib.suppress(OSError):
            self._status.send(message)


def child_main(
    name: str,
    parent_pid: int,
    spawned: float,
    target: str,
    kwargs: dict[str, Any],
    status: connection.Connection,
    board: Board,
    slot_number: int,
) -> None:
    """First code of ours in a child. Light until the lifelines hold: `target` may import torch for a second."""
    times = {"spawned": spawned, "running": time.monotonic()}
    gc.disable()  # until ready: imports make hardly any garbage, and looking for it takes a tenth of torch's import
    open_standard_streams()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C hits the whole group; the main process decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_leave_with_parent, name="lifeline", daemon=True).start()
    slot = board.slot(slot_number)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    register_stacks(slot)
    setproctitle(name)
    context = ChildContext(name, status, times, board, slot)
    try:
        module, function = target.split(":")
        entry = getattr(importlib.import_module(module), function)
        context.mark("imported")
        entry(context, **kwargs)
    except BaseException as error:  # whatever it is, the parent must hear of it
        context.fail(error)
    context.leave()


def open_standard_streams() -> None:
    """A process started with a closed stdin, stdout or stderr gets /dev/null there: else the next pipe or socket would
    take its number, and whoever prints would write into it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if fd == 0 else "w"))  # noqa: SIM115, PTH123


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def refuse_while_spawning() -> None:
    """End this process when it is a child importing the user's script: a missing `__main__` guard, not a start."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(EXIT_NO_MAIN_GUARD)


def configure_logging(level: str, prefix: str = "") -> None:
    """Log lines as SGLang's: `[2024-12-03 10:00:00 DP0 TP1] text`, on stderr."""
    logging.basicConfig(
        level=level.upper(),
        format=f"[%(asctime)s{' ' + prefix if prefix else ''}] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        stream=sys.stderr,
        force=True,
    )
