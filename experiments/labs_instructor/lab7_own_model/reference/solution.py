"""Lab 7, the reference: a ring in shared memory, which rank 0 writes and every other rank reads.

```
 free 1 .. free T-1 | full 1 .. full T-1 | slot 0 | slot 1 | .. | slot SLOTS-1
```

1. A message is cut into pieces of one slot each: 4 bytes that say how many bytes follow, 1 whether the message goes on.
   So a message may be longer than the ring: readers take the first pieces out while the writer waits to put more in.
2. Each reader has two semaphores: `full` counts slots that it has not read, `free` those that may be written over
   for its sake. The writer takes one `free` of every reader, writes, and posts one `full` to every reader.
3. Writer and readers each count their own slots, modulo SLOTS. Nothing but the semaphores is looked at by both sides.
4. Every turn has a message, an empty list where nothing has come: so the n-th turn's list is the n-th message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from common.channels import Receiver
from common.messages import Request, TurnOutput
from common.parallel.shared_memory import SEMAPHORE_BYTES, Semaphore, SharedBuffer
from common.processes import ChildContext
from common.tracing import NO_TRACE, NoTrace, Trace

SLOTS = 16
SLOT_BYTES = 16384
HEAD = struct.Struct("<IB")  # bytes of this piece, 1 if more pieces of the message follow
PIECE = SLOT_BYTES - HEAD.size

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Request]).decode

Send = Callable[[TurnOutput], None]


def share(size: int, folder: str) -> SharedBuffer | None:
    readers = size - 1
    if not readers:
        return None
    buffer = SharedBuffer(2 * readers * SEMAPHORE_BYTES + SLOTS * SLOT_BYTES)
    for reader in range(readers):
        Semaphore(buffer, reader * SEMAPHORE_BYTES).initialize(SLOTS)
        Semaphore(buffer, (readers + reader) * SEMAPHORE_BYTES).initialize(0)
    return buffer


class Ring:
    """One end of it: `put` on rank 0, `get` on any other rank."""

    def __init__(self, buffer: SharedBuffer, readers: int, reader: int | None) -> None:
        """reader: which one this process is; None is the writer."""
        mine = range(readers) if reader is None else (reader,)
        self.free = [Semaphore(buffer, one * SEMAPHORE_BYTES) for one in mine]
        self.full = [Semaphore(buffer, (readers + one) * SEMAPHORE_BYTES) for one in mine]
        self._slots = memoryview(buffer.memory)[2 * readers * SEMAPHORE_BYTES :]
        self.count = 0

    def put(self, data: bytes) -> None:
        """Blocks while a reader has not read what lies there."""
        view = memoryview(data)
        while True:
            piece, view = view[:PIECE], view[PIECE:]
            for free in self.free:
                free.wait()
            self.write(piece, bool(view))
            for full in self.full:
                full.post()
            if not view:
                return

    def get(self) -> bytes:
        """Blocks until there is a message."""
        pieces = []
        more = True
        while more:
            self.full[0].wait()
            piece, more = self.read()
            pieces.append(piece)
            self.free[0].post()
        return b"".join(pieces)

    def write(self, piece: memoryview, more: bool) -> None:
        start = self._next()
        HEAD.pack_into(self._slots, start, len(piece), more)
        self._slots[start + HEAD.size : start + HEAD.size + len(piece)] = piece

    def read(self) -> tuple[bytes, int]:
        start = self._next()
        length, more = HEAD.unpack_from(self._slots, start)
        return bytes(self._slots[start + HEAD.size : start + HEAD.size + length]), more

    def _next(self) -> int:
        """Where the next slot begins."""
        start = self.count % SLOTS * SLOT_BYTES
        self.count += 1
        return start


class Inlet:
    def __init__(
        self,
        context: ChildContext,
        shared: SharedBuffer | None,
        rank: int,
        size: int,
        inbox: Receiver | None,
        trace: Trace | NoTrace = NO_TRACE,
    ) -> None:
        self._inbox = inbox
        self._readers = size - 1
        self._trace = trace
        self.ring = self.make_ring(shared, rank) if shared else None

    def make_ring(self, shared: SharedBuffer, rank: int) -> Ring:
        return Ring(shared, self._readers, rank - 1 if rank else None)

    def turn(self, busy: bool) -> list[Request]:
        if self._inbox is None:
            self._trace.part("transport" if busy else "idle")
            data = self.ring.get()
            self._trace.part("decode")
            return decode(data)
        messages = self.drain(busy)
        if self.ring:
            self.publish(messages)
        return messages

    def drain(self, busy: bool) -> list[Request]:
        """Rank 0: what the main process has sent."""
        if not busy:
            self._trace.part("idle")
            self._inbox.wait()
        self._trace.part("recv_requests")
        return self._inbox.drain(wait=False)

    def publish(self, messages: list[Request]) -> None:
        self._trace.part("encode")
        data = encode(messages)
        self._trace.part("transport")
        self._trace.sent(self._readers, self._readers * len(data), 0)
        self.ring.put(data)

    def close(self) -> None:
        """What lies in the ring stays there until the last process that looks into it has ended."""


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
