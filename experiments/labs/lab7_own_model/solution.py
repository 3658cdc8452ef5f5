"""Lab 7, a fourth process model: how a turn's requests reach every rank. The file that you edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.channels import Receiver
from common.messages import Request, TurnOutput
from common.processes import ChildContext
from common.tracing import NO_TRACE, NoTrace, Trace

Send = Callable[[TurnOutput], None]


def share(size: int, folder: str) -> Any:
    """What the ranks of one replica share, made before they start, in the process that starts them: anonymous shared
    memory, paths of sockets in the run's `folder`. It is handed to each rank while that is spawned, so it can be
    pickled then. Nothing in it has a fixed name or port, and once all ranks run, no name of it is needed on disk.

    size: ranks, 1 or more.
    """
    raise NotImplementedError("lab7 task 7a: what the ranks share")


class Inlet:
    """In each rank: where its turns' messages come from."""

    def __init__(
        self,
        context: ChildContext,
        shared: Any,
        rank: int,
        size: int,
        inbox: Receiver | None,
        trace: Trace | NoTrace = NO_TRACE,
    ) -> None:
        """inbox: where the main process's messages arrive; on rank 0 only. `context.zmq` is this process's ZMQ
        context. When this returns on every rank, nothing that is sent from then on is lost.

        `trace`: say there what you send, once for each rank that receives it (`trace.sent(1, nbytes, 0)`), and the
        parts of a turn as `common.parallel.broadcast` does.
        """
        raise NotImplementedError("lab7 task 7b: a channel for messages of any length")

    def turn(self, busy: bool) -> list[Request]:
        """This turn's messages: in the n-th call the same list on every rank, in the order in which they were sent.

        busy: there is work in the scheduler, alike on all ranks, so return at once, with an empty list if nothing has
        come. Else block, on no core, until there is a message.
        """
        if not busy:
            raise NotImplementedError("lab7 task 7c: block until there is a message")
        raise NotImplementedError("lab7 task 7a: this turn's list")

    def close(self) -> None:
        """After the last turn. The process ends soon; what others have not read yet must still reach them."""
        raise NotImplementedError("lab7 task 7d: leave nothing unread")


def loop(inlet: Inlet, worker: Any, send: Send | None, trace: Trace | NoTrace = NO_TRACE) -> None:
    """Turn after turn, until the worker says that it is the last. worker: has `busy`, and `step(messages)` that returns
    a TurnOutput (`common.worker`). send: takes each output onward, the last one too; on rank 0 only. Every turn begins
    with `trace.turn()`."""
    raise NotImplementedError("lab7 task 7d: turn after turn, to the last")


def claims(task: str) -> None:
    """Tasks 7e to 7h start engines, which takes minutes. Each is tried when you have taken its lines away here: do that
    when 7a to 7d are right."""
    if task == "7e":
        raise NotImplementedError("lab7 task 7e: not claimed yet")
    if task == "7f":
        raise NotImplementedError("lab7 task 7f: not claimed yet")
    if task == "7g":
        raise NotImplementedError("lab7 task 7g: not claimed yet")
    if task == "7h":
        raise NotImplementedError("lab7 task 7h: not claimed yet")
