"""What the tests compare a solution with: digests, and the engine's own client of the same ranks, counted."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from evolution.rpyc_router.transport import ReferenceCalls, ValueCalls

from .ranks import CONSTANTS, Ranks, Sent, digest


def some_requests(count: int, seed: int = 0) -> list[dict]:
    """As they come to a router: an id, the prompt's token ids, how many tokens are wanted."""
    rng = random.Random(seed)
    return [
        {"rid": f"r{index}", "ids": [rng.randrange(1 << 15) for _ in range(rng.randint(1, 60))], "tokens": 16}
        for index in range(count)
    ]


def answer_to(requests: list[dict]) -> list[dict]:
    """What rank 0 answers."""
    return [{"rank": 0, "count": len(requests), "digest": digest(requests)}]


def usual(step: Callable[[], Any], ranks: Ranks, steps: int = 20) -> tuple[Sent, Sent]:
    """What the router, and what all ranks send in most steps. By reference a dropped reference may be told of in the
    next step, and what connecting took is part of the first."""
    from_router, from_ranks = [], []
    for _ in range(steps):
        before = ranks.sent_by_router(), ranks.sent_by_ranks()
        step()
        from_router.append(ranks.sent_by_router() - before[0])
        from_ranks.append(ranks.sent_by_ranks() - before[1])
    return most_common(from_router[2:]), most_common(from_ranks[2:])


def most_common(counts: list[Sent]) -> Sent:
    return Sent(*Counter((one.messages, one.bytes) for one in counts).most_common(1)[0][0])


def engine_counts(how: str, count: int, requests: list[dict]) -> tuple[Sent, Sent]:
    """The same of the engine's own client, v0.1.5's where `how` is by reference."""

    class WithoutConnections(Ranks):
        def sent_by_router(self) -> Sent:
            channels = [call.channel for call in calls]
            return Sent(sum(one.messages for one in channels), sum(one.sent_bytes for one in channels))

    async def step() -> None:
        payload = calls[0].pack(requests)
        replies = await asyncio.gather(*[call.call("step", payload) for call in calls])
        calls[0].unpack(replies[0], list[dict])

    async def connect() -> list[Any]:
        kind = ValueCalls if how == "value" else ReferenceCalls
        return [kind(rank, address, CONSTANTS[how], ranks.secret) for rank, address in enumerate(ranks.addresses)]

    with WithoutConnections(count, how, channel=None) as ranks, asyncio.Runner() as runner:
        calls = runner.run(connect())
        return usual(lambda: runner.run(step()), ranks)


def router_cpu(step: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall time in s that a step takes this process."""
    wall, cpu = time.monotonic(), time.process_time()
    step()
    return time.process_time() - cpu, time.monotonic() - wall


def call_times(
    channel: type[Channel], payload: bytes, tune: Callable[[socket.socket], None] | None = None
) -> list[float]:
    """Of calls of one rank over TCP, in s. At first a connection acknowledges everything at once, so the first ones are
    left out."""
    with Ranks(1, "tcp", channel=channel) as ranks:
        if tune:
            tune(ranks.channels[0].stream.sock)
        step = ranks.connections[0].root.step
        took = []
        for _ in range(25):
            began = time.perf_counter()
            step(payload)
            took.append(time.perf_counter() - began)
    return took[10:]


class CountedSocket:
    """Stands for a socket that takes whatever it is given: how much, call by call."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> int:
        self.sent.append(bytes(data))
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)


def sends(channel: type[Channel], size: int) -> list[bytes]:
    """What a channel gives to its socket for one frame, call by call."""
    counted = CountedSocket()
    channel(SocketStream(counted), False).send(bytes(size))
    return counted.sent
