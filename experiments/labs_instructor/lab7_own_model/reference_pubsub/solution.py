"""Lab 7, another reference: PUB/SUB with an agreed count, as SGLang's development had it for some weeks in 2024.

```
 rank 0    what the main process sends ──PUB──┬──SUB── rank 1
                                              └──SUB── rank 2 ..
 every turn, all ranks: how many messages has each? They take as many as the one that has fewest.
```

1. Every rank receives at its own pace, in the same order. What differs is how many it has at a given turn.
2. So each turn has a collective, the minimum of the counts, also where nothing has come. It is their meeting point.
3. A rank with nothing to do and nothing received waits for a message before it meets the others: whoever has one
   waits for it there. A message reaches all of them, so nobody waits for ever.
4. Who subscribes late would miss what came before: rank 0 is ready when it has heard of every subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from common.channels import Receiver
from common.messages import Request, TurnOutput
from common.parallel.group import GroupSpec, join
from common.processes import ChildContext
from common.tracing import NO_TRACE, NoTrace, Trace

COUNT_BYTES = 16  # of a count in the collective

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Request).decode

Send = Callable[[TurnOutput], None]


@dataclass(frozen=True)
class Shared:
    """address: where rank 0 publishes. group: of the collective."""

    address: str
    group: GroupSpec


def share(size: int, folder: str) -> Shared:
    group = GroupSpec.create(size, "shm", "cpu", Path(folder), "agree", slot_bytes=4096)
    return Shared(f"ipc://{folder}/published", group)


class Inlet:
    def __init__(
        self,
        context: ChildContext,
        shared: Shared,
        rank: int,
        size: int,
        inbox: Receiver | None,
        trace: Trace | NoTrace = NO_TRACE,
    ) -> None:
        self._inbox = inbox
        self._others = size - 1
        self._trace = trace
        self._received: list[Request] = []
        self._group = join(shared.group, rank)
        if rank == 0:
            self._socket = context.zmq.socket(zmq.XPUB)
            self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # every subscription is heard of, not only the first
            self._socket.setsockopt(zmq.SNDHWM, 0)
            self._socket.bind(shared.address)
            for _ in range(self._others):
                self._socket.recv()
        else:
            self._socket = context.zmq.socket(zmq.SUB)
            self._socket.setsockopt(zmq.RCVHWM, 0)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
            self._socket.connect(shared.address)
            self._socket.subscribe(b"")

    def turn(self, busy: bool) -> list[Request]:
        while True:
            if not busy and not self._received:
                self._trace.part("idle")
                self._wait()
            self._trace.part("recv_requests")
            self._received += self._drain()
            count = self.agree(len(self._received))
            if busy or count:  # alike on every rank
                break
        messages, self._received = self._received[:count], self._received[count:]
        return messages

    def agree(self, count: int) -> int:
        """The least of all ranks' counts."""
        self._trace.part("transport")
        if self._others:
            self._trace.sent(self._others, self._others * COUNT_BYTES, 0)
            self._trace.count("collectives", int(self._inbox is not None))
        return min(self._group.all_gather_ints(count))

    def _wait(self) -> None:
        """Until there is something to drain."""
        if self._inbox is not None:
            self._inbox.wait()
        else:
            self._socket.poll()

    def _drain(self) -> list[Request]:
        if self._inbox is None:
            return self._drain_subscription()
        messages = self._inbox.drain(wait=False)
        for message in messages if self._others else ():
            data = encode(message)
            self._trace.sent(self._others, self._others * len(data), 0)
            self._socket.send(data)
        return messages

    def _drain_subscription(self) -> list[Request]:
        messages = []
        while True:
            try:
                messages.append(decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def close(self) -> None:
        """All ranks have taken the last message, or they would not have agreed on it."""


def loop(inlet: Inlet, worker: Any, send: Send | None, trace: Trace | NoTrace = NO_TRACE) -> None:
    while True:
        trace.turn()
        output = worker.step(inlet.turn(worker.busy))
        if send:
            send(output)
        if output.stop:
            return


def claims(task: str) -> None:
    """All of them."""
