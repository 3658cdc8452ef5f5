"""Lab 3, part 3: the loops of the ranks."""

from __future__ import annotations

from collections.abc import Callable

from common.channels import Receiver
from common.messages import TurnOutput
from common.worker import Worker

from .solution import Broadcast


def lead(requests: Receiver, broadcast: Broadcast, worker: Worker, send: Callable[[TurnOutput], None]) -> None:
    """Rank 0's loop, until an output says `stop`: take what has arrived, broadcast it, step, send the output.

    As long as `worker.busy`, each turn takes what is there, and goes on if there is nothing. Else nothing is to be done
    before a message arrives: block until then, and make no turns.
    """
    stopped = False
    while not stopped:
        arrived = requests.drain(wait=not worker.busy)
        broadcast.send(arrived)
        output = worker.step(arrived)
        send(output)
        stopped = output.stop


def follow(broadcast: Broadcast, worker: Worker) -> None:
    """The loop of the other ranks, until an output of theirs says `stop`. Their outputs are dropped."""
    stopped = False
    while not stopped:
        stopped = worker.step(broadcast.receive()).stop
