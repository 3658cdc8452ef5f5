"""What a step costs in messages, bytes, encodings and decodings, counted where they happen, in the process itself.

Only in a pass of its own, before anything is timed: the counting is a Python call around each. Bytes are those given to
the system or to the library: a stream's or a pipe's with their framing, gloo's and ZMQ's without the headers that those
add themselves.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import pickle
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec
import torch.distributed as dist
import zmq
from rpyc.core.channel import Channel as RpycChannel
from rpyc.core.stream import SocketStream

from evolution.rpyc_router.stream import LinearStream
from experiments.bench.mechanism_plain import LENGTH, Framed, SharedMemory


@dataclass
class Counts:
    messages: int = 0
    bytes: int = 0
    encodings: int = 0
    decodings: int = 0

    def sent(self, nbytes: int) -> None:
        self.messages += 1
        self.bytes += nbytes


COUNTS = Counts()  # of this process
_dumps, _loads = pickle.dumps, pickle.loads
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode
_Encoder, _Decoder = msgspec.msgpack.Encoder, msgspec.msgpack.Decoder
_fork_dumps = ForkingPickler.dumps


# Functions of a module and not of a closure: rpyc pickles `pickle.loads` itself, by name.
def dumps(*arguments: Any, **named: Any) -> bytes:
    COUNTS.encodings += 1
    return _dumps(*arguments, **named)


def loads(*arguments: Any, **named: Any) -> Any:
    COUNTS.decodings += 1
    return _loads(*arguments, **named)


def fork_dumps(*arguments: Any) -> Any:
    COUNTS.encodings += 1
    return _fork_dumps(*arguments)


def encode(*arguments: Any, **named: Any) -> bytes:
    COUNTS.encodings += 1
    return _encode(*arguments, **named)


def decode(*arguments: Any, **named: Any) -> Any:
    COUNTS.decodings += 1
    return _decode(*arguments, **named)


class Encoder:
    def __init__(self) -> None:
        self._encoder = _Encoder()

    def encode(self, message: Any) -> bytes:
        COUNTS.encodings += 1
        return self._encoder.encode(message)

    def encode_into(self, message: Any, buffer: bytearray) -> None:
        COUNTS.encodings += 1
        self._encoder.encode_into(message, buffer)


class Decoder:
    def __init__(self, message_type: Any) -> None:
        self._decoder = _Decoder(message_type)

    def decode(self, content: Any) -> Any:
        COUNTS.decodings += 1
        return self._decoder.decode(content)


def _broadcast(tensor: Any, *_: Any, **__: Any) -> None:
    if dist.get_rank() != 0:  # each receiver is sent it once, whatever the tree
        COUNTS.sent(tensor.nbytes)


def _message(*_: Any) -> None:
    COUNTS.messages += 1


def _bytes(_: Any, data: Any, *__: Any) -> None:
    COUNTS.bytes += len(data)


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Meanwhile COUNTS goes up with what this process sends, encodes and decodes. What was opened before is missed."""
    replaced = (
        (pickle, "dumps", dumps),
        (pickle, "loads", loads),
        (ForkingPickler, "dumps", staticmethod(fork_dumps)),
        (ForkingPickler, "loads", staticmethod(loads)),
        (msgspec.msgpack, "encode", encode),
        (msgspec.msgpack, "decode", decode),
        (msgspec.msgpack, "Encoder", Encoder),
        (msgspec.msgpack, "Decoder", Decoder),
    )
    preceded = (
        (dist, "broadcast", _broadcast),
        (zmq.Socket, "send", lambda _, data, *__, **___: COUNTS.sent(len(data))),
        (RpycChannel, "send", _message),
        (SocketStream, "write", _bytes),
        (LinearStream, "write", _bytes),
        (multiprocessing.connection.Connection, "_send_bytes", _message),
        (multiprocessing.connection.Connection, "_send", _bytes),
        (Framed, "send", lambda _, content: COUNTS.sent(LENGTH.size + len(content))),
        (SharedMemory, "write", lambda _, content: COUNTS.sent(LENGTH.size + len(content))),
    )
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in (*replaced, *preceded)]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    for owner, name, count in preceded:
        setattr(owner, name, _counted(count, vars(owner)[name]))
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def _counted(count: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        count(*arguments, **named)
        return function(*arguments, **named)

    return call


def counted() -> tuple[int, ...]:
    """messages, bytes, encodings, decodings of this process so far."""
    return astuple(COUNTS)
