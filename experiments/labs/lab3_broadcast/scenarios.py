"""What the ranks do in the tests of this lab, and the messages that they do it with."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from common.channels import Receiver
from common.messages import (
    AbortRequest,
    FlushRequest,
    GenerateRequest,
    ImageData,
    Request,
    SamplingParams,
    StatsRequest,
    StopRequest,
    TurnOutput,
    pack_ids,
)
from common.parallel.broadcast import MessageBroadcast, Msgpack
from common.tracing import NoTrace

from . import adapters
from .wire import Wire

Turns = list[list[Request]]
SLOW_TURN = 0.5  # s

# ---------------------------------------------------------------------- messages


def request(rid: str, prompt: int = 8, image: bytes | None = None) -> GenerateRequest:
    """With a prompt of so many token ids."""
    ids = pack_ids(number % 250 for number in range(prompt))
    return GenerateRequest(rid, ids, SamplingParams(), image=ImageData(image, "") if image else None)


def mixed_turns(seed: int, count: int, empty: float, longest: int = 20) -> Turns:
    """Lists of messages of every kind, 1 to `longest` in one, a share of them empty; one has an image of 300 KB."""
    rng = random.Random(seed)
    turns: Turns = []
    for turn in range(count):
        messages: list[Request] = []
        for place in range(0 if rng.random() < empty else rng.randint(1, longest)):
            name = f"r{turn}-{place}"
            control = [AbortRequest(place, name), FlushRequest(turn), StatsRequest(turn)]
            messages.append(rng.choice([request(name, rng.randint(1, 400))] * 4 + control))
        turns.append(messages)
    turns.insert(count // 2, [request("image", image=rng.randbytes(300_000)), request("after the image")])
    return turns


def turn_of_length(nbytes: int) -> list[Request]:
    """One request whose list takes exactly so many bytes (at least 64) when `Msgpack` has encoded it."""
    for rid_length in (1, 2, 3, 4):  # where 4 bytes more of token ids take more than 4 of msgpack
        for prompt in range(nbytes // 4):
            messages = [request("x" * rid_length, prompt)]
            if encoded_length(messages) == nbytes:
                return messages
    raise ValueError(f"no request of {nbytes} bytes")


def pack(turns: Turns) -> bytes:
    """For the way to the ranks' processes. (A message that was pickled there would be longer when it is encoded again:
    msgspec leaves a field out whose value is the default, the very same object.)"""
    return msgspec.msgpack.encode(turns)


def _unpack(turns: bytes) -> Turns:
    return msgspec.msgpack.decode(turns, type=list[list[Request]])


def encoded_length(messages: list[Request]) -> int:
    return len(msgspec.msgpack.encode(messages))


# ---------------------------------------------------------------------- broadcasts


@dataclass
class Exchanged:
    """received: nothing on rank 0. sizes: for each turn, the bytes of the broadcasts it cost on this rank. rooms: the
    lengths for which memory was asked of a kept buffer."""

    received: Turns = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)


def exchange(wire: Wire, turns: bytes) -> Exchanged:
    return _exchange(wire, adapters.broadcast(wire), turns)


def exchange_kept(wire: Wire, turns: bytes) -> Exchanged:
    kept = adapters.kept_room()
    rooms: list[int] = []

    def room(length: int) -> torch.Tensor:
        rooms.append(length)
        return kept(length)

    result = _exchange(wire, adapters.broadcast(wire, room), turns)
    result.rooms = rooms
    return result


def exchange_packed(wire: Wire, turns: bytes, block: int) -> Exchanged:
    return _exchange(wire, adapters.packed_broadcast(wire, block), turns)


def _exchange(wire: Wire, broadcast: Any, turns: bytes) -> Exchanged:
    """The turns are rank 0's to know; of the others only their number is looked at."""
    result = Exchanged()
    for messages in _unpack(turns):
        before = len(wire.sizes)
        if wire.rank == 0:
            broadcast.send(messages)
        else:
            result.received.append(broadcast.receive())
        result.sizes.append(wire.sizes[before:])
    return result


class Counts(NoTrace):
    """What `MessageBroadcast` says of itself when it is traced."""

    def __init__(self) -> None:
        self.broadcasts = self.nbytes = 0

    def count(self, name: str, value: int) -> None:
        self.broadcasts += value if name == "collectives" else 0

    def sent(self, messages: int, nbytes: int, pickles: int) -> None:
        self.nbytes += nbytes


def engines_own(wire: Wire, turns: bytes) -> tuple[int, int]:
    """Broadcasts and bytes of the engine's own `MessageBroadcast`, as it counts them on rank 0."""
    counts = Counts()
    broadcast = MessageBroadcast(wire.group, Msgpack(list[Request]), {}, counts)
    for messages in _unpack(turns):
        if wire.rank == 0:
            broadcast.send(messages)
        else:
            broadcast.receive()
    return counts.broadcasts, counts.nbytes


# ---------------------------------------------------------------------- loops


class PretendWorker:
    """Where the engine's Worker would be: each request keeps it busy for a few turns, and it writes down what came.

    A turn that brings a request whose name begins with "slow" takes half a second, as a long prefill would.
    """

    def __init__(self, turns_of_request: int) -> None:
        self.turns: list[list[str]] = []  # what each brought
        self.idle_turns = 0  # that brought nothing, with nothing to do
        self._turns_of_request = turns_of_request
        self._left = 0

    @property
    def busy(self) -> bool:
        return self._left > 0

    def step(self, messages: list[Request]) -> TurnOutput:
        if not messages and not self.busy:
            self.idle_turns += 1
        names = [m.rid if isinstance(m, GenerateRequest) else type(m).__name__ for m in messages]
        self.turns.append(names)
        if any(name.startswith("slow") for name in names):
            time.sleep(SLOW_TURN)
        self._left = max(self._left - 1, 0)
        if any(isinstance(message, GenerateRequest) for message in messages):
            self._left = self._turns_of_request
        stop = any(isinstance(message, StopRequest) for message in messages)
        return TurnOutput(None, [], 0, self.busy, stop)


@dataclass
class Looped:
    """turns: names of what each turn brought. sent: outputs that were sent, of them those that said `stop`."""

    turns: list[list[str]]
    idle_turns: int
    sent: int
    stops: int
    broadcasts: int


def loop(wire: Wire, turns_of_request: int, requests: Receiver | None = None) -> Looped:
    worker = PretendWorker(turns_of_request)
    broadcast = adapters.broadcast(wire)
    outputs: list[TurnOutput] = []
    if wire.rank == 0:
        adapters.lead(requests, broadcast, worker, outputs.append)
    else:
        adapters.follow(broadcast, worker)
    stops = sum(output.stop for output in outputs)
    return Looped(worker.turns, worker.idle_turns, len(outputs), stops, len(wire.sizes))
