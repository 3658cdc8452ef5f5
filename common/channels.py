"""One-way channels between processes of one run: ZMQ PUSH -> PULL, over ipc with messages as msgpack.

The receiver binds, senders connect. The paths lie in the private run folder and are unlinked once every sender has
connected, which is why `Sender` waits for its handshake. Decoding msgpack is typed: whatever is not the message class
of the edge is an error.

With era constants a stage may ask for what its version had: TCP on 127.0.0.1, and pickle. No port is fixed: the
receiver takes a free one and writes it into the run folder. Anybody on the host can connect to it, which with those
versions was enough to run code: so here each message begins with the run's secret, and nothing else is decoded.
"""

from __future__ import annotations

import hmac
import logging
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import msgspec
import zmq

from common.tracing import NO_TRACE, NoTrace, Trace

logger = logging.getLogger(__name__)

FORGED = object()  # what is decoded of a message without the run's secret
CONNECT_TIMEOUT = 120.0  # the other process may still be importing its modules on a busy machine


@dataclass(frozen=True)
class Channel:
    """path: of the socket (transport "ipc"), or of the file that says the port ("tcp"). codec: "msgpack", "pickle".
    secret: what each message begins with; none where only this user can reach the socket."""

    path: str
    transport: str = "ipc"
    codec: str = "msgpack"
    secret: bytes = field(default=b"", repr=False)

    def bind(self, socket: zmq.Socket) -> None:
        if self.transport == "ipc":
            socket.bind(f"ipc://{self.path}")
            return
        socket.bind("tcp://127.0.0.1:*")
        unfinished = Path(f"{self.path}.new")
        unfinished.write_bytes(socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0"))
        unfinished.rename(self.path)

    def address(self) -> str | None:
        """What a sender connects to; None as long as the receiver has not said its port."""
        if self.transport == "ipc":
            return f"ipc://{self.path}"
        try:
            return Path(self.path).read_text()
        except FileNotFoundError:
            return None

    def encoder(self) -> Callable[[Any], bytes]:
        encode = msgspec.msgpack.Encoder().encode if self.codec == "msgpack" else pickle.dumps
        return (lambda message: self.secret + encode(message)) if self.secret else encode

    def decoder(self, message_type: Any) -> Callable[[bytes | memoryview], Any]:
        """What it gives for a message without the secret is FORGED."""
        decode = msgspec.msgpack.Decoder(message_type).decode if self.codec == "msgpack" else pickle.loads
        if not self.secret:
            return decode

        def checked(data: bytes | memoryview) -> Any:
            if not hmac.compare_digest(bytes(data[: len(self.secret)]), self.secret):
                logger.warning("a message of %d bytes that is not of this run was dropped", len(data))
                return FORGED
            return decode(data[len(self.secret) :])

        return checked


@dataclass(frozen=True)
class Endpoints:
    """The channels of a run, in its folder: four that every stage has, and those of its own by name."""

    folder: str
    transport: str = "ipc"
    codec: str = "msgpack"
    secret: bytes = field(default=b"", repr=False)  # of this run, for what others on the host can connect to

    def channel(self, name: str) -> Channel:
        secret = self.secret if self.transport == "tcp" else b""
        return Channel(f"{self.folder}/{name}", self.transport, self.codec, secret)

    @property
    def requests(self) -> Channel:
        """main -> stage: Request"""
        return self.channel("requests")

    @property
    def token_batches(self) -> Channel:
        """each replica's rank 0 -> detokenizer: TokenBatch"""
        return self.channel("tokens")

    @property
    def control(self) -> Channel:
        """each replica's rank 0 -> main: ControlOut"""
        return self.channel("control")

    @property
    def texts(self) -> Channel:
        """detokenizer -> main: TextBatch"""
        return self.channel("texts")


class Sender:
    """The PUSH end of a channel. `send` is safe from several threads; it never blocks (no high-water mark)."""

    def __init__(self, context: zmq.Context, channel: Channel, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Blocks until connected; `meanwhile` is called ten times a second and may raise."""
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._encode = channel.encoder()
        self._pickles = int(channel.codec == "pickle")  # of a message
        self._lock = threading.Lock()
        self._connect(channel, meanwhile)

    def _connect(self, channel: Channel, meanwhile: Callable[[], None]) -> None:
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        deadline = time.monotonic() + CONNECT_TIMEOUT

        def wait() -> None:
            meanwhile()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody listens on {channel.path} after {CONNECT_TIMEOUT:.0f} s")

        while (address := channel.address()) is None:
            wait()
            time.sleep(0.01)
        self._socket.connect(address)
        while not monitor.poll(100):
            wait()
        monitor.recv_multipart()
        self._socket.disable_monitor()

    def close(self) -> None:
        """Nobody listens any more: what was not taken is dropped. Not to be sent to again."""
        self._socket.close(linger=0)

    def send(self, message: Any, trace: Trace | NoTrace = NO_TRACE) -> None:
        """`trace`: of the calling thread."""
        data = self._encode(message)
        if trace.on:
            trace.sent(1, len(data), self._pickles)
        with self._lock:
            self._socket.send(data, copy=len(data) < 65536)


def count_pickled(message: Any, trace: Trace | NoTrace) -> None:
    """Of what goes into a queue or a pipe of multiprocessing, which do not say how long its pickle was. To count it, it
    is pickled once more, and so only where it is traced."""
    if trace.on:
        trace.sent(1, len(ForkingPickler.dumps(message)), 1)


class Receiver:
    """The PULL end of a channel of messages of one type (a struct class or a tagged union)."""

    def __init__(
        self, context: zmq.Context, channel: Channel, message_type: Any, socket_class: type[zmq.Socket] = zmq.Socket
    ) -> None:
        """With `zmq.asyncio.Socket` the owner awaits `socket.recv()` and calls `decode` itself."""
        self.socket = context.socket(zmq.PULL, socket_class=socket_class)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        channel.bind(self.socket)
        self.decode = channel.decoder(message_type)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)

    def receive(self) -> Any:
        """Block until a message arrives."""
        while (message := self.decode(self.socket.recv())) is FORGED:
            pass
        return message

    def wait(self) -> None:
        """Block until there is a message to drain."""
        self._poller.poll()

    def drain(self, wait: bool) -> list[Any]:
        """All messages that have arrived, in order; with `wait`, block until there is at least one."""
        messages = []
        if wait:
            messages.append(self.receive())
        while True:
            try:
                # A frame is decoded where it lies: of an image of 4 MiB a copy takes as long as all the rest here. A
                # message of 200 bytes takes 0.8 us more so, one of 4 KiB 0.3; the size is known too late to choose.
                message = self.decode(self.socket.recv(zmq.NOBLOCK, copy=False).buffer)
            except zmq.Again:
                return messages
            if message is not FORGED:
                messages.append(message)
