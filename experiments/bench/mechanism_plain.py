"""The mechanisms that no stage uses, as plain as they come: what the stages' mechanisms are compared to.

The list is encoded once for all receivers, but by multiprocessing.Queue, which pickles the encoded bytes once more for
each.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
from typing import Any

import msgspec

from common.messages import TurnOutput
from common.parallel.shared_memory import SEMAPHORE_BYTES, Semaphore, SharedBuffer
from common.processes import ChildContext
from experiments.bench.mechanism_base import Mechanism, Place, Took
from experiments.bench.mechanism_payloads import LONGEST

LENGTH = struct.Struct("<Q")


class PlainMechanism(Mechanism):
    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> Any:
        self._place, self._index, self._took = place, index, took

    def serve(self) -> None:
        decode = self._place.decoder()
        for _ in range(self._place.steps):
            self._took(decode(self.receive()))

    async def connect(self, place: Place, addresses: list[Any]) -> None:
        self._encode = place.encoder()
        self._receivers = len(addresses)

    async def send(self, messages: list[Any]) -> None:
        self.send_bytes(self._encode(messages))

    def receive(self) -> Any:
        """The next encoded list; blocks."""
        raise NotImplementedError

    def send_bytes(self, content: bytes) -> None:
        """To all receivers."""
        raise NotImplementedError


class Queue(PlainMechanism):
    name = "queue"
    what = "multiprocessing.Queue, pickled msgpack"

    def __init__(self, most_receivers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._queues = [context.Queue() for _ in range(most_receivers)]

    def receive(self) -> bytes:
        return self._queues[self._index].get()

    def send_bytes(self, content: bytes) -> None:
        for queue in self._queues[: self._receivers]:
            queue.put(content)


class Pipe(PlainMechanism):
    name = "pipe"
    what = "multiprocessing.Pipe, msgpack"

    def __init__(self, most_receivers: int) -> None:
        self._pipes = [multiprocessing.Pipe(duplex=False) for _ in range(most_receivers)]

    def receive(self) -> bytes:
        return self._pipes[self._index][0].recv_bytes()

    def send_bytes(self, content: bytes) -> None:
        for _, writer in self._pipes[: self._receivers]:
            writer.send_bytes(content)


class Framed:
    """A stream socket that carries whole messages: eight bytes of length, then the content."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, content: bytes) -> None:
        if len(content) < 65536:
            self._socket.sendall(LENGTH.pack(len(content)) + content)
        else:  # copying would cost more than the second system call
            self._socket.sendall(LENGTH.pack(len(content)))
            self._socket.sendall(content)

    def receive(self) -> bytes:
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return self._read(length)

    def _read(self, length: int) -> bytes:
        """EOFError when the other side is gone."""
        data = self._socket.recv(length, socket.MSG_WAITALL)
        if len(data) < length:
            raise EOFError("the socket was closed")
        return data

    def close(self) -> None:
        self._socket.close()


class UnixSocket(PlainMechanism):
    name = "socket"
    what = "raw unix socket, msgpack"

    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> str:
        super().listen(context, place, index, took)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(place.path(index))
        self._listener.listen()
        return place.path(index)

    def serve(self) -> None:
        accepted, _ = self._listener.accept()
        self._listener.close()
        self._socket = Framed(accepted)
        super().serve()
        self._socket.close()

    def receive(self) -> bytes:
        return self._socket.receive()

    async def connect(self, place: Place, addresses: list[str]) -> None:
        await super().connect(place, addresses)
        self._sockets = []
        for address in addresses:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(address)
            self._sockets.append(Framed(connected))

    def send_bytes(self, content: bytes) -> None:
        for framed in self._sockets:
            framed.send(content)

    def close(self) -> None:
        for framed in self._sockets:
            framed.close()


class UnixSocketCall(UnixSocket):
    name = "socket-call"
    what = "raw unix socket to all T ranks, and rank 0 answers"
    answers = True

    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> str:
        def take_and_answer(messages: list[Any]) -> None:
            took(messages)
            if index == 0:
                self._socket.send(msgspec.msgpack.encode(TurnOutput(None, [], 0, False, False)))

        return super().listen(context, place, index, take_and_answer)

    async def send(self, messages: list[Any]) -> None:
        await super().send(messages)
        msgspec.msgpack.decode(self._sockets[0].receive(), type=TurnOutput)


class SharedMemory(PlainMechanism):
    """One slot that all receivers read, and for each of them two semaphores: there is something, and it was taken."""

    name = "shm"
    what = "shared memory, a semaphore (futex) per receiver, msgpack"

    def __init__(self, most_receivers: int) -> None:
        self._most = most_receivers
        self._buffer = SharedBuffer(2 * most_receivers * SEMAPHORE_BYTES + LENGTH.size + LONGEST)
        for semaphore in self._semaphores():
            semaphore.initialize()

    def _semaphores(self) -> list[Semaphore]:
        """Those of the receivers for `full`, then those for `taken`."""
        return [Semaphore(self._buffer, i * SEMAPHORE_BYTES) for i in range(2 * self._most)]

    def _slot(self) -> memoryview:
        return memoryview(self._buffer.memory)[2 * self._most * SEMAPHORE_BYTES :]

    def serve(self) -> None:
        slot, semaphores = self._slot(), self._semaphores()
        full, taken = semaphores[self._index], semaphores[self._most + self._index]
        decode = self._place.decoder()
        for _ in range(self._place.steps):
            full.wait()
            (length,) = LENGTH.unpack_from(slot)
            messages = decode(slot[LENGTH.size : LENGTH.size + length])  # copies what it keeps
            self._took(messages)
            taken.post()

    async def connect(self, place: Place, addresses: list[Any]) -> None:
        await super().connect(place, addresses)
        semaphores = self._semaphores()
        self._memory = self._slot()
        self._full = semaphores[: self._receivers]
        self._taken = semaphores[self._most : self._most + self._receivers]
        self._in_use = False

    def send_bytes(self, content: bytes) -> None:
        if self._in_use:
            for semaphore in self._taken:
                semaphore.wait()
        self._in_use = True
        self.write(content)
        for semaphore in self._full:
            semaphore.post()

    def write(self, content: bytes) -> None:
        LENGTH.pack_into(self._memory, 0, len(content))
        self._memory[LENGTH.size : LENGTH.size + len(content)] = content

    def close(self) -> None:
        for semaphore in self._taken:
            semaphore.wait()
