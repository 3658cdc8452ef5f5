"""`--on-replica-failure degrade`, in the process that dispatches: take a replica out, and tell whom it concerns.

A failure in a replica is heard on the supervisor's thread, which has killed the rest of it by then. The dispatcher's
own thread, whose sockets these are, does what is left, in its turn:

    the dispatcher     never picks it again
    the main process   is told, behind all that was said of its requests (`Dispatched`): it sends those that have given
                       nothing yet once more, and fails the others
    the detokenizer    gets the last batch that the replica will not send
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue

from common.args import EngineArgs
from common.channels import Endpoints, Sender
from common.messages import Dispatched, ReplicaLost, TokenBatch
from common.processes import ChildContext, Failure, ProcessFailed


class LostReplicas:
    def __init__(
        self, context: ChildContext, args: EngineArgs, endpoints: Endpoints, take_out: Callable[[int], None]
    ) -> None:
        """Once all replicas are ready. take_out(replica): called on the dispatcher's thread."""
        self.replicas: set[int] = set()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)  # readable when a replica was lost
        self.degrades = args.on_replica_failure == "degrade"
        self._take_out = take_out
        self._heard: SimpleQueue[tuple[int, Failure]] = SimpleQueue()
        self._dispatched: dict[int, list[str]] = {}
        if self.degrades:
            self._send_to_main = Sender(context.zmq, endpoints.control)
            self._send_to_detokenizer = Sender(context.zmq, endpoints.token_batches)
            context.supervisor.tolerate(self._hear)

    def _hear(self, replica: int, failure: Failure) -> None:
        """On the supervisor's thread."""
        os.eventfd_write(self.wake, 1)
        self._heard.put((replica, failure))

    # ------------------------------------------------------------------ on the dispatcher's thread

    def note(self, replica: int, rid: str) -> None:
        """A request goes to this replica."""
        if self.degrades:
            self._dispatched.setdefault(replica, []).append(rid)

    def look(self) -> None:
        """Once a turn of the loop: tell what was noted, and then what was lost."""
        for replica, rids in self._dispatched.items():
            self._send_to_main.send(Dispatched(replica, rids))
        self._dispatched.clear()
        while not self._heard.empty():
            replica, failure = self._heard.get()
            self.replicas.add(replica)
            self._take_out(replica)
            self._send_to_detokenizer.send(TokenBatch(replica, [], last=True))
            self._send_to_main.send(ReplicaLost(replica, str(ProcessFailed(failure))))
            os.eventfd_read(self.wake)
