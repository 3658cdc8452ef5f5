"""Control messages that are out, and their replies: exactly one from each replica."""

from __future__ import annotations

import threading
from collections.abc import Callable

from common.messages import AbortRequest, ControlReply, FlushRequest, StatsRequest, StopRequest

TIMEOUT = 60.0  # a rank answers between two turns, and a long prefill on a CPU takes its time

ControlRequest = AbortRequest | FlushRequest | StatsRequest | StopRequest


class ControlCalls:
    """`ask` on any thread; `take` and `wake` on the one that receives.

    send: hands a message to the stage. raise_failure: raises what has ended the engine, if something has.
    """

    def __init__(
        self,
        replicas: int,
        lock: threading.RLock,
        send: Callable[[ControlRequest], None],
        raise_failure: Callable[[], None],
    ) -> None:
        self._replicas = set(range(replicas))  # those that are left
        self._changed = threading.Condition(lock)
        self._send = send
        self._raise_failure = raise_failure
        self._count = 0
        self._replies: dict[int, list[ControlReply]] = {}

    def next_id(self) -> int:
        with self._changed:
            self._count += 1
            return self._count

    def ask(self, kind: type[ControlRequest], *fields: str) -> list[ControlReply]:
        """Send a message of this kind and add up the replies. TimeoutError names the replicas that did not answer."""
        message = kind(self.next_id(), *fields)
        with self._changed:
            self._raise_failure()
            replies = self._replies[message.id] = []
            try:
                self._send(message)
                self._changed.wait_for(lambda: self._complete(replies), TIMEOUT)
            finally:
                del self._replies[message.id]
        missing = sorted(self._missing(replies))
        if missing:
            raise TimeoutError(f"no reply from replica(s) {', '.join(map(str, missing))} in {TIMEOUT:.0f} s")
        return replies

    def _complete(self, replies: list[ControlReply]) -> bool:
        self._raise_failure()
        return not self._missing(replies)

    def _missing(self, replies: list[ControlReply]) -> set[int]:
        return self._replicas - {reply.replica for reply in replies}

    def lose(self, replica: int) -> None:
        """A replica is no more: its reply is waited for no longer."""
        with self._changed:
            self._replicas.discard(replica)
            self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for replies."""
        return bool(self._replies)

    def take(self, reply: ControlReply) -> None:
        with self._changed:
            if reply.id in self._replies:
                self._replies[reply.id].append(reply)
                self._changed.notify_all()

    def wake(self) -> None:
        """Those who wait look again whether the engine has failed."""
        with self._changed:
            self._changed.notify_all()
