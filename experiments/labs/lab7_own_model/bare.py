"""Bare ranks: real processes with your inlet and your loop, and no model. Given; nothing to edit.

In place of the worker stands one that writes down what each turn brought, a line of JSON per turn, and is busy for
BUSY_TURNS turns after each message. It may be slow, so that ranks do not run side by side by luck.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from common.channels import Endpoints, Receiver, Sender
from common.messages import ControlReply, Request, StopRequest, TurnOutput
from common.processes import ChildContext, Failure, ReadyReport, Supervisor

from . import adapters

BUSY_TURNS = 3
START = 60.0  # s


class Notebook:
    """A worker that only writes down: a list per turn of what the messages were."""

    def __init__(self, path: Path, slow: float, seed: int) -> None:
        """slow: s that a turn takes at most, and at least half of that."""
        self._file = path.open("w", buffering=1)
        self._left = 0
        self._slow = slow
        self._random = random.Random(seed)

    @property
    def busy(self) -> bool:
        return self._left > 0

    def step(self, messages: list[Request]) -> TurnOutput:
        if self._slow:
            time.sleep(self._random.uniform(self._slow / 2, self._slow))
        self._file.write(json.dumps([name_of(message) for message in messages]) + "\n")
        self._left = BUSY_TURNS if messages else self._left - 1
        stop = any(isinstance(message, StopRequest) for message in messages)
        return TurnOutput(None, [ControlReply(0, 0, True)] if stop else [], 0, self.busy, stop)

    def end(self) -> None:
        self._file.write(json.dumps("left") + "\n")
        self._file.close()


def name_of(message: Request) -> str:
    """Of a message and all that is in it."""
    return f"{type(message).__name__} {hashlib.sha256(msgspec.msgpack.encode(message)).hexdigest()[:16]}"


def run_rank(context: ChildContext, endpoints: Endpoints, rank: int, size: int, shared: Any, slow: float) -> None:
    requests = Receiver(context.zmq, endpoints.requests, Request) if rank == 0 else None
    notebook = Notebook(Path(endpoints.folder) / f"rank{rank}", slow, seed=rank)
    inlet = adapters.inlet(context, shared, rank, size, requests)
    outputs: list[TurnOutput] = []
    context.ready()
    adapters.loop(inlet, notebook, outputs.append if rank == 0 else None)
    if rank == 0 and not (outputs and outputs[-1].stop and outputs[-1].control):
        raise RuntimeError("the last turn's output was not sent on")
    inlet.close()
    notebook.end()


@dataclass
class Crew:
    """Bare ranks that run. `turns(rank)`: what each of its turns brought so far; `left(rank)`: it has left its loop."""

    folder: Path
    reports: list[ReadyReport]
    supervisor: Supervisor
    failures: list[Failure]
    requests: Sender
    sent: list[str] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [report.pid for report in self.reports]

    def send(self, *messages: Request) -> None:
        for message in messages:
            self.sent.append(name_of(message))
            self.requests.send(message)

    def lines(self, rank: int) -> list[Any]:
        lines = (self.folder / f"rank{rank}").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def turns(self, rank: int) -> list[list[str]]:
        return [line for line in self.lines(rank) if line != "left"]

    def left(self, rank: int) -> bool:
        return "left" in self.lines(rank)

    def received(self, rank: int) -> list[str]:
        return [name for turn in self.turns(rank) for name in turn]

    def wait(self, patience: float) -> bool:
        """Until every rank has as many messages as were sent; False if that takes longer, or a rank fails."""
        return self.wait_for(lambda rank: len(self.received(rank)) >= len(self.sent), patience)

    def wait_until_left(self, patience: float) -> bool:
        return self.wait_for(self.left, patience)

    def wait_for(self, done: Callable[[int], Any], patience: float) -> bool:
        """Until it is so for every rank."""
        deadline = time.monotonic() + patience
        while not all(done(rank) for rank in range(len(self.reports))):
            if time.monotonic() > deadline or self.failures:
                return False
            time.sleep(0.01)
        return True

    def failed(self) -> str:
        """The first failure of a rank in words, or ""."""
        return "\n".join(f"{failure}\n{failure.traceback}" for failure in self.failures[:1])


@contextmanager
def crew(size: int, slow: tuple[float, ...] = ()) -> Iterator[Crew]:
    """`size` bare ranks, of which rank i takes slow[i] / 2 to slow[i] s for a turn. All are gone at the end."""
    failures: list[Failure] = []
    context = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="evo-bare-") as folder:
        endpoints = Endpoints(folder)
        supervisor = Supervisor(failures.append)
        try:
            shared = adapters.share(size, folder)
            for rank in range(size):
                how = {"rank": rank, "size": size, "shared": shared, "slow": slow[rank] if slow else 0.0}
                supervisor.start(f"evo-bare TP{rank}", f"{__name__}:run_rank", {"endpoints": endpoints, **how})
            reports = supervisor.wait_ready(START)
            sender = Sender(context, endpoints.requests, meanwhile=supervisor.raise_failure)
            yield Crew(Path(folder), reports, supervisor, failures, sender)
        finally:
            supervisor.kill()
            context.destroy(linger=0)
