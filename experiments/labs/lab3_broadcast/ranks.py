"""Ranks for the tests of this lab: real processes, real gloo, and a limit to how long they may hang.

`run_ranks(scenario, size, ...)` runs a function of `scenarios.py` on each of `size` ranks and returns what each gave.
Rank processes are forked by a server that has imported torch once (multiprocessing's forkserver), so that a test takes
a tenth of a second where a start from nothing takes two. The engine's own ranks are spawned, as in `stage.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import pytest
import zmq

from common.channels import Channel, Receiver, Sender
from common.messages import Request
from common.parallel.group import GroupSpec, control_group
from common.parallel.shared_memory import SharedBuffer
from common.run_folder import run_folder

HANGS_AFTER = 10.0  # s; what the tests ask of a rank takes less than one
LAST_WORDS = 0.3  # s after the first failure, in which the other ranks may say what happened to them
PR_SET_PDEATHSIG = 1

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", "torch.distributed", "common.worker", "common.parallel.broadcast"])

Scenario = Callable[..., Any]  # scenario(wire, **settings), on every rank; what it returns is pickled


class RankFailed(AssertionError):
    """A rank raised, or was ended."""


def run_ranks(
    scenario: Scenario,
    size: int,
    meanwhile: Callable[[Sender], None] | None = None,
    hangs_after: float = HANGS_AFTER,
    **settings: Any,
) -> list[Any]:
    """What `scenario(wire, **settings)` returned on each rank, in rank order.

    meanwhile: is called with the sending end of a channel of requests, and the scenario on rank 0 gets the receiving
    end as `requests`. RankFailed when a rank ends, or raises anything but NotImplementedError, which is passed on. When
    a rank has not returned `hangs_after` s after all have met, the test fails as by a timeout.
    """
    context = zmq.Context()
    with run_folder() as folder:
        group = GroupSpec.create(size, "gloo", "cpu", folder, "lab")
        requests = Channel(str(folder / "requests")) if meanwhile else None
        ranks = [_Rank(scenario, group, rank, settings, requests) for rank in range(size)]
        try:
            _collect(ranks, "met", 60.0)
            sender = Sender(context, requests) if requests else None
            deadline = time.monotonic() + hangs_after
            for rank in ranks:
                rank.pipe.send("go")
            if meanwhile:
                meanwhile(sender)
            return _collect(ranks, "returned", deadline - time.monotonic())
        finally:
            for rank in ranks:
                rank.end()
            context.destroy(linger=0)


def end_server() -> None:
    """It would end by itself, but a moment after this process."""
    multiprocessing.forkserver._forkserver._stop()


class _Rank:
    """A rank, as the test knows it. Its process says "met", then "returned" with a value, or "raised"."""

    def __init__(
        self, scenario: Scenario, group: GroupSpec, rank: int, settings: dict[str, Any], requests: Channel | None
    ) -> None:
        self.rank = rank
        self.pipe, theirs = _context.Pipe()
        self.counts = SharedBuffer(16)  # broadcasts that it has begun, and finished
        arguments = (scenario, group, rank, settings, requests if rank == 0 else None, theirs, self.counts)
        self.process = _context.Process(target=_run_rank, args=arguments, name=f"lab3 TP{rank}", daemon=True)
        self.process.start()
        theirs.close()

    def where(self) -> str:
        begun, finished = memoryview(self.counts.memory).cast("q")
        if begun > finished:
            return f"rank {self.rank} waits in its broadcast number {begun}"
        return f"rank {self.rank} has made {begun} broadcast{'s' * (begun != 1)} and is not in one"

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def _collect(ranks: list[_Rank], wanted: str, timeout: float) -> list[Any]:
    """The value that each rank says with `wanted`."""
    values: dict[int, Any] = {}
    failures: list[tuple[_Rank, str, Any]] = []
    deadline = time.monotonic() + timeout
    while len(values) < len(ranks):
        waiting = {rank.pipe: rank for rank in ranks if rank.rank not in values and not _failed(rank, failures)}
        ready = connection.wait(list(waiting), max(deadline - time.monotonic(), 0)) if waiting else []
        for pipe in ready:
            kind, value = _hear(waiting[pipe])
            if kind == wanted:
                values[waiting[pipe].rank] = value
            else:
                if not failures:
                    deadline = min(deadline, time.monotonic() + LAST_WORDS)
                failures.append((waiting[pipe], kind, value))
        if not ready:
            if failures:
                raise _first(failures)
            returned = [f"rank {rank} has returned" for rank in sorted(values)]
            where = "; ".join(returned + [rank.where() for rank in ranks if rank.rank not in values])
            pytest.fail(f"Timeout (>{timeout:.0f} s): {where}", pytrace=False)
    return [values[rank.rank] for rank in ranks]


def _failed(rank: _Rank, failures: list[tuple[_Rank, str, Any]]) -> bool:
    return any(failed is rank for failed, _, _ in failures)


def _hear(rank: _Rank) -> tuple[str, Any]:
    try:
        return rank.pipe.recv()
    except (EOFError, OSError):
        rank.process.join(5)
        return "ended", rank.process.exitcode


def _first(failures: list[tuple[_Rank, str, Any]]) -> Exception:
    """The cause: not of a rank that only lost another one, if there is a better one."""
    rank, kind, value = min(failures, key=lambda failure: failure[1] == "raised" and failure[2][0] == "PeerLost")
    if kind == "ended":
        how = f"was ended by signal {-value}" if value < 0 else f"ended with code {value}"
        hint = " (gloo aborts a rank whose tensor is shorter than what arrives)" if value == -signal.SIGABRT else ""
        return RankFailed(f"rank {rank.rank} {how}{hint}; {rank.where()}")
    error, text, trace = value
    if error == "NotImplementedError":
        return NotImplementedError(text)
    return RankFailed(f"rank {rank.rank} raised {error}: {text}\n{trace}")


# ---------------------------------------------------------------------- in the rank


def _run_rank(
    scenario: Scenario,
    group: GroupSpec,
    rank: int,
    settings: dict[str, Any],
    requests: Channel | None,
    pipe: Connection,
    counts: SharedBuffer,
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # of the server, which ends with the tests
    import torch

    from .wire import Wire

    torch.set_num_threads(1)
    cells = memoryview(counts.memory).cast("q")

    def before() -> None:
        cells[0] += 1

    def after() -> None:
        cells[1] += 1

    try:
        wire = Wire(control_group(group, rank), before, after)
        if requests:
            settings = {**settings, "requests": Receiver(zmq.Context(), requests, Request)}
        pipe.send(("met", None))
        pipe.recv()
        value = scenario(wire, **settings)
    except BaseException as error:
        with contextlib.suppress(OSError):
            pipe.send(("raised", (type(error).__name__, str(error), traceback.format_exc())))
        os._exit(1)
    pipe.send(("returned", value))
    with contextlib.suppress(EOFError):
        pipe.recv()  # the others may still wait for what this rank has sent them
    os._exit(0)
