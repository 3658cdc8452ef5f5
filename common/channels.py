"""One-way channels between processes of one run: ZMQ PUSH -> PULL over ipc, messages as msgpack.

The receiver binds, senders connect. The paths lie in the private run folder and are unlinked once every sender has
connected, which is why `Sender` waits for its handshake. Decoding is typed: whatever is not the message class of the
edge is an error. Nothing is pickled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

CONNECT_TIMEOUT = 120.0  # the other process may still be importing its modules on a busy machine


@dataclass(frozen=True)
class Endpoints:
    """ipc addresses of the three channels that every stage has, and the folder for those of its own."""

    folder: str
    requests: str  # main -> stage: Request
    token_batches: str  # each replica's rank 0 -> detokenizer: TokenBatch
    control: str  # each replica's rank 0 -> main: ControlOut
    texts: str  # detokenizer -> main: TextBatch

    @staticmethod
    def in_folder(folder: str) -> Endpoints:
        return Endpoints(folder, *(f"ipc://{folder}/{name}" for name in ("requests", "tokens", "control", "texts")))


class Sender:
    """The PUSH end of a channel. `send` is safe from several threads; it never blocks (no high-water mark)."""

    def __init__(self, context: zmq.Context, address: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Blocks until connected; `meanwhile` is called ten times a second and may raise."""
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._connect(address, meanwhile)

    def _connect(self, address: str, meanwhile: Callable[[], None]) -> None:
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(address)
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while not monitor.poll(100):
            meanwhile()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody listens on {address} after {CONNECT_TIMEOUT:.0f} s")
        monitor.recv_multipart()
        self._socket.disable_monitor()

    def send(self, message: Any) -> None:
        data = self._encoder.encode(message)
        with self._lock:
            self._socket.send(data, copy=len(data) < 65536)


class Receiver:
    """The PULL end of a channel of messages of one type (a struct class or a tagged union)."""

    def __init__(
        self, context: zmq.Context, address: str, message_type: Any, socket_class: type[zmq.Socket] = zmq.Socket
    ) -> None:
        """With `zmq.asyncio.Socket` the owner awaits `socket.recv()` and calls `decode` itself."""
        self.socket = context.socket(zmq.PULL, socket_class=socket_class)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.bind(address)
        self.decode = msgspec.msgpack.Decoder(message_type).decode

    def receive(self) -> Any:
        """Block until a message arrives."""
        return self.decode(self.socket.recv())

    def drain(self, wait: bool) -> list[Any]:
        """All messages that have arrived, in order; with `wait`, block until there is at least one."""
        messages = []
        if wait:
            messages.append(self.decode(self.socket.recv()))
        while True:
            try:
                messages.append(self.decode(self.socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages
