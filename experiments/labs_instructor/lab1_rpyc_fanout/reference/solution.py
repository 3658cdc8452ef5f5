"""Lab 1, the reference."""

from __future__ import annotations

import selectors
import socket
from typing import Any

import msgspec
import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream
from rpyc.utils.classic import obtain


def pack(requests: list[dict]) -> bytes:
    return msgspec.msgpack.encode(requests)


def unpack(payload: bytes) -> list[dict]:
    return msgspec.msgpack.decode(payload, type=list[dict])


class RankLost(Exception):
    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} closed its connection")
        self.rank = rank


class ValueFanOut:
    def __init__(self, connections: list[rpyc.Connection]) -> None:
        self._calls = Calls(connections)

    def step(self, requests: list[dict]) -> list[dict]:
        return unpack(self._calls.all(pack(requests))[0].value)


class Calls:
    """To all ranks. Every connection is served as long as one of them has not answered: by reference a rank needs an
    answer itself before it can give one."""

    def __init__(self, connections: list[rpyc.Connection]) -> None:
        self._connections = connections
        # Looked up once: each look at a remote object is a message there and back.
        self._steps = [rpyc.async_(connection.root.step) for connection in connections]
        self._readable = selectors.DefaultSelector()
        for rank, connection in enumerate(connections):
            self._readable.register(connection.fileno(), selectors.EVENT_READ, rank)

    def all(self, argument: Any) -> list[rpyc.AsyncResult]:
        """The answers of all ranks. Raises what a rank raised, or RankLost."""
        results = []
        for rank, step in enumerate(self._steps):
            try:
                results.append(step(argument))
            except EOFError:
                raise RankLost(rank) from None
        open_ones = set(range(len(results)))
        for rank, result in enumerate(results):
            result.add_callback(lambda _, rank=rank: open_ones.discard(rank))
        while open_ones:
            for key, _ in self._readable.select():
                self._serve(key.data)
        for result in results:
            if result.error:
                raise result._obj
        return results

    def _serve(self, rank: int) -> None:
        try:
            self._connections[rank].poll()
        except EOFError:
            raise RankLost(rank) from None


class ReferenceFanOut:
    def __init__(self, connections: list[rpyc.Connection]) -> None:
        self._calls = Calls(connections)

    def step(self, requests: list[dict]) -> list[dict]:
        return obtain(self._calls.all(requests)[0].value)


def take_reference(argument: Any) -> list[dict]:
    return obtain(argument)


def give_reference(answer: list[dict]) -> Any:
    return answer


class CountingChannel(Channel):
    def __init__(self, stream: SocketStream, compress: bool) -> None:
        super().__init__(stream, compress)
        self.messages = 0
        self.sent_bytes = 0

    def send(self, data: bytes) -> None:
        super().send(data)
        self.messages += 1
        self.sent_bytes += len(data)


def messages_of_a_step(how: str, ranks: int) -> tuple[int, int]:
    if how == "value":
        return ranks, ranks
    # Of the router: the call, the pickle, the answer to the dropping of the argument, the dropping of the answer. Each
    # rank sends the counterparts; and rank 0's answer is pulled with one more message there and back.
    return 4 * ranks + 1, 4 * ranks + 1


def sends_of_a_frame(size: int) -> int:
    chunk = SocketStream.MAX_IO_CHUNK
    around = Channel.FRAME_HEADER.size + len(Channel.FLUSHER)
    if size + around <= chunk:
        return 1
    rest = size - (chunk - Channel.FRAME_HEADER.size)  # what the first send has no room for
    return 1 + -(-rest // chunk) + 1  # and the byte that ends a frame goes alone


class WholeFrames(Channel):
    def send(self, data: bytes) -> None:
        frame = b"".join((self.FRAME_HEADER.pack(len(data), False), data, self.FLUSHER))
        try:
            self.stream.sock.sendall(frame)
        except OSError as error:
            self.stream.close()
            raise EOFError(error) from error


def tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
