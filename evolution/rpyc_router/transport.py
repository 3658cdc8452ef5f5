"""How a call travels between the router and a rank, both ends side by side: by value, or by reference as in v0.1.5.

By value: one message there and one back. The argument is msgpack in `bytes`, which rpyc sends inside the call, through
a unix socket, frames not compressed; the event loop reads the reply.

By reference: a list is mutable, so rpyc sends a reference to it. The rank's `obtain` calls back for a pickle; the reply
is again a reference, and the router pulls rank 0's back with one more callback. The references that are dropped each
send a message, too. A thread waits for each rank. Over TCP, with zlib and Nagle's algorithm on, which are rpyc's
defaults. Its pickles come through a port that anybody on the host can connect to, so the router first sends the run's
secret; a rank closes any other connection before rpyc reads from it.

Arguments and replies are lists in both.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import msgspec
import rpyc
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection
from rpyc.core.stream import SocketStream
from rpyc.utils.classic import obtain
from rpyc.utils.server import OneShotServer

from common.processes import PeerLost, name_this_thread
from evolution.rpyc_router.constants import RpycConstants
from evolution.rpyc_router.stream import LinearStream

CONNECT_TIMEOUT = 10.0
SECRET_TIMEOUT = 1.0  # s in which who connects to a rank must have said the secret


def protocol_config(constants: RpycConstants) -> dict[str, Any]:
    # rpyc gives up on a synchronous call after 30 s by default, on each side for itself. A rank may take longer.
    return {"sync_request_timeout": constants.sync_request_timeout, "allow_pickle": constants.calls == "by reference"}


# ---------------------------------------------------------------------- the router's end


class CountingChannel(Channel):
    """Counts what this end sends: rpyc's messages, and their bytes before compression. rpyc lets one thread send at a
    time."""

    __slots__ = ("messages", "sent_bytes")

    def __init__(self, stream: SocketStream, compress: bool) -> None:
        super().__init__(stream, compress)
        self.messages = self.sent_bytes = 0

    def send(self, data: bytes) -> None:
        self.messages += 1
        self.sent_bytes += len(data)
        super().send(data)


class ValueCalls:
    """The connection to one rank. Must be made on the event loop that will await the calls."""

    pickles = 0  # that a rank's pulling an argument makes

    def __init__(self, rank: int, address: str | int, constants: RpycConstants, secret: bytes) -> None:
        self._rank = rank
        self._loop = asyncio.get_running_loop()
        self.channel, self._connection = _connect(lambda: LinearStream.unix_connect(address), False, constants)
        self._remote = _remote_methods(self._connection)
        self._pending: set[asyncio.Future] = set()
        self._descriptor = self._connection.fileno()  # rpyc forgets it when the other end is gone
        self._loop.add_reader(self._descriptor, self._serve)

    @staticmethod
    def pack(messages: list[Any]) -> bytes:
        """Once for all ranks."""
        return msgspec.msgpack.encode(messages)

    @staticmethod
    def unpack(reply: bytes, list_type: Any) -> list[Any]:
        return msgspec.msgpack.decode(reply, type=list_type)

    def call(self, method: str, payload: bytes, *more: bool) -> asyncio.Future:
        """The reply, to be awaited. Raises what the rank raised; PeerLost when it is gone."""
        future = self._loop.create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._remote[method](payload, *more).add_callback(lambda result: _settle(future, result))
        return future

    def close(self) -> None:
        """Ends the rank's server."""
        self._loop.remove_reader(self._descriptor)
        self._connection.close()

    def _serve(self) -> None:
        """The socket is readable: take the replies that have arrived; their callbacks settle the futures."""
        try:
            while self._connection.poll():  # poll_all would swallow the end of the connection
                pass
        except EOFError:
            self._loop.remove_reader(self._descriptor)
            for future in list(self._pending):
                if not future.done():
                    future.set_exception(PeerLost(f"rank {self._rank} closed its rpyc connection"))


class ReferenceCalls:
    """The same as v0.1.5 did it."""

    pickles = 1

    def __init__(self, rank: int, address: str | int, constants: RpycConstants, secret: bytes) -> None:
        def connect() -> SocketStream:
            stream = SocketStream.connect("127.0.0.1", address)
            stream.sock.sendall(secret)
            return stream

        self.channel, self._connection = _connect(connect, True, constants)
        self._remote = _remote_methods(self._connection)
        # A thread of its own, where 0.1.5 took one of asyncio's pool: that has cores + 4, and only the thread that
        # waits for a rank answers the rank's callback, so more ranks than threads would wait for each other.
        self._thread = ThreadPoolExecutor(1, initializer=name_this_thread, initargs=(f"wait for TP{rank}",))

    @staticmethod
    def pack(messages: list[Any]) -> list[Any]:
        return messages

    @staticmethod
    def unpack(reply: rpyc.AsyncResult, list_type: Any) -> list[Any]:
        """Raises what the rank raised."""
        return obtain(reply.value)

    async def call(self, method: str, payload: list[Any], *more: bool) -> rpyc.AsyncResult:
        reply = self._remote[method](payload, *more)
        await asyncio.get_running_loop().run_in_executor(self._thread, reply.wait)
        return reply

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        self._connection.close()


def _remote_methods(connection: Connection) -> dict[str, Callable[[Any], rpyc.AsyncResult]]:
    """Looked up once: each look at a remote object is a message there and back."""
    root = connection.root
    return {method: rpyc.async_(getattr(root, method)) for method in ("step", "plan", "execute")}


def _settle(future: asyncio.Future, result: rpyc.AsyncResult) -> None:
    if future.done():
        return
    try:
        future.set_result(result.value)
    except Exception as error:  # what the rank raised
        future.set_exception(error)


def _connect(
    connect_stream: Callable[[], SocketStream], compress: bool, constants: RpycConstants
) -> tuple[CountingChannel, Connection]:
    """Retries for the instant between a rank's `ready` and its server's listen()."""
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while True:
        try:
            channel = CountingChannel(connect_stream(), compress)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        channel.stream.sock.settimeout(None)
        return channel, rpyc.VoidService()._connect(channel, protocol_config(constants))


# ---------------------------------------------------------------------- the rank's end


class ValueEnd:
    """Takes arguments in and gives results out, by value."""

    pickles = 0  # that the router's pulling a result makes

    @staticmethod
    def take(payload: bytes, list_type: Any) -> list[Any]:
        return msgspec.msgpack.decode(payload, type=list_type)

    @staticmethod
    def give(results: list[Any]) -> bytes:
        return msgspec.msgpack.encode(results)


class ReferenceEnd:
    pickles = 1

    @staticmethod
    def take(payload: Any, list_type: Any) -> list[Any]:
        return obtain(payload)

    @staticmethod
    def give(results: list[Any]) -> list[Any]:
        return results


class CountingServer(OneShotServer):
    """One connection, the router's, whose channel its service is told; `compress` says whether frames are compressed,
    which rpyc's servers offer no setting for."""

    compress: ClassVar[bool]
    stream: ClassVar[type[SocketStream]]

    def _serve_client(self, sock: socket.socket, credentials: object) -> None:
        self.service.channel = CountingChannel(self.stream(sock), self.compress)
        self._handle_connection(self.service._connect(self.service.channel, dict(self.protocol_config)))


class ValueServer(CountingServer):
    compress, stream = False, LinearStream


class ReferenceServer(CountingServer):
    compress, stream = True, SocketStream

    def __init__(self, secret: bytes, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._secret = secret

    def _authenticate_and_serve_client(self, sock: socket.socket) -> None:
        """Of a one-shot server, which goes on listening until it was the router that connected."""
        while not self._knows_secret(sock):
            sock.close()
            sock = self._next_connection()
        super()._authenticate_and_serve_client(sock)

    def _next_connection(self) -> socket.socket:
        while True:
            try:
                return self.listener.accept()[0]
            except TimeoutError:  # rpyc's listener has one, to look whether it was closed
                continue

    def _knows_secret(self, sock: socket.socket) -> bool:
        sock.settimeout(SECRET_TIMEOUT)
        sent = b""
        try:
            while len(sent) < len(self._secret) and (more := sock.recv(len(self._secret) - len(sent))):
                sent += more
        except OSError:
            return False
        sock.settimeout(None)
        return hmac.compare_digest(sent, self._secret)


def make_server(service: rpyc.Service, socket_path: str, constants: RpycConstants, secret: bytes) -> OneShotServer:
    """Bound, and listening from `start()` on; `port` is its port where it has one."""
    config = protocol_config(constants)
    if constants.calls == "by value":
        return ValueServer(service, socket_path=socket_path, protocol_config=config)
    return ReferenceServer(secret, service, hostname="127.0.0.1", port=0, protocol_config=config)
