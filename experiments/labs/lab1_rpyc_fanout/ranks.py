"""Real ranks for this lab: processes with an rpyc server around a `step` that is in lock-step, as a forward's is.

```
 router (the test) ──rpyc──> rank 0 ──┐
                  └──rpyc──> rank 1 ──┴── a barrier: no rank answers before all have been called
```

The servers are the engine's own (`evolution/rpyc_router/transport.py`): by value over a unix socket; by reference over
TCP, with zlib and Nagle's algorithm on. What stands between them and the router is yours.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import TracebackType
from typing import Any

import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from evolution.rpyc_router.constants import LEVEL, V0_1_5
from evolution.rpyc_router.stream import LinearStream
from evolution.rpyc_router.transport import (
    CountingChannel,
    CountingServer,
    ReferenceEnd,
    ValueEnd,
    make_server,
    protocol_config,
)

from . import adapters

CONSTANTS = {"value": LEVEL, "reference": V0_1_5, "tcp": LEVEL}
Ends = tuple[Callable[[Any], list[dict]], Callable[[list[dict]], Any]]
END = 10.0  # s that a rank has to leave when its connection is closed


@dataclass
class Sent:
    """Rpyc's messages, and their bytes before compression."""

    messages: int = 0
    bytes: int = 0

    def __sub__(self, other: Sent) -> Sent:
        return Sent(self.messages - other.messages, self.bytes - other.bytes)


class RouterChannel(CountingChannel):
    """Also counts how often the router looks whether something has arrived."""

    __slots__ = ("looks",)

    def __init__(self, stream: SocketStream, compress: bool) -> None:
        super().__init__(stream, compress)
        self.looks = 0

    def poll(self, timeout: Any) -> bool:
        self.looks += 1
        return super().poll(timeout)


class Ranks:
    """So many ranks, connected. how: value, reference, or tcp (a payload over TCP, nothing compressed, never unpacked).

    A context manager: at the end of the block the connections are closed and the processes gone.
    """

    def __init__(self, count: int, how: str = "value", channel: type[Channel] | None = RouterChannel) -> None:
        """channel: of the router's end of each connection; None: the engine's own client will call, so that the ranks
        take and give as the engine's do, not as the solution's."""
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self.secret = secrets.token_bytes(16)
        self._cells = [context.RawArray("q", 2) for _ in range(count)]
        barrier = context.Barrier(count)
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.channels: list[Channel] = []
        self.connections: list[rpyc.Connection] = []
        pipes = []
        for rank in range(count):
            reader, writer = context.Pipe(duplex=False)
            path = str(Path(self._folder.name) / f"{rank}.rpyc")
            arguments = (rank, how, channel is None, path, self.secret, barrier, self._cells[rank], writer)
            self.processes.append(context.Process(target=run_rank, args=arguments, daemon=True))
            self.processes[-1].start()
            writer.close()
            pipes.append(reader)
        try:
            self.addresses = [pipe.recv() for pipe in pipes]
            for address in self.addresses if channel is not None else []:
                self._connect(how, address, channel)
        except BaseException:
            self.close()
            raise

    def _connect(self, how: str, address: str | int, channel: type[Channel]) -> None:
        if how == "value":
            stream: SocketStream = LinearStream.unix_connect(address)
        else:
            stream = SocketStream.connect("127.0.0.1", address)
        stream.sock.settimeout(None)
        if how == "reference":
            stream.sock.sendall(self.secret)
        self.channels.append(channel(stream, how == "reference"))
        self.connections.append(rpyc.VoidService()._connect(self.channels[-1], protocol_config(CONSTANTS[how])))

    def sent_by_router(self) -> Sent:
        return Sent(sum(one.messages for one in self.channels), sum(one.sent_bytes for one in self.channels))

    def sent_by_ranks(self) -> Sent:
        """Up to the begin of the call that each rank was last at."""
        return Sent(sum(cells[0] for cells in self._cells), sum(cells[1] for cells in self._cells))

    def kill(self, rank: int) -> None:
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for channel in self.channels:
            channel.close()
        for process in self.processes:
            process.join(END)
        self._folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType) -> None:
        self.close()


# ---------------------------------------------------------------------- in a rank's process


def run_rank(
    rank: int, how: str, engines: bool, path: str, secret: bytes, barrier: Barrier, cells: Any, said: Pipe
) -> None:
    service = RankService(rank, ends(how, engines), barrier, cells)
    if how == "tcp":
        server = TcpServer(service, hostname="127.0.0.1", port=0, protocol_config=protocol_config(LEVEL))
    else:
        server = make_server(service, path, CONSTANTS[how], secret)
    server.listener.listen()  # the router may connect from here on
    said.send(path if how == "value" else server.port)
    said.close()
    server.start()


def ends(how: str, engines: bool) -> Ends:
    """How a rank takes its argument, and gives its answer."""
    if how == "tcp":
        return lambda _: [], lambda _: b""
    if not engines:
        return adapters.rank_end(how)
    end = ValueEnd if how == "value" else ReferenceEnd
    return lambda argument: end.take(argument, list[dict]), end.give


class TcpServer(CountingServer):
    compress, stream = False, SocketStream


class RankService(rpyc.Service):
    """What a router may call. `step` answers with who it is, how many requests it was given, and a digest of them.

    A request may be an instruction: {"rank": 1, "do": "raise"}; also `die`, and `wait` with `seconds`.
    """

    def __init__(self, rank: int, ends: Ends, barrier: Barrier, cells: Any) -> None:
        self.rank = rank
        self.take, self.give = ends
        self.barrier = barrier
        self.cells = cells
        self.channel: CountingChannel  # set by the server

    def exposed_step(self, argument: Any) -> Any:
        self.cells[0], self.cells[1] = self.channel.messages, self.channel.sent_bytes
        requests = self.take(argument)
        mine = [one for one in requests if one.get("do") and one["rank"] in (self.rank, "all")]
        for instruction in mine:
            if instruction["do"] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if instruction["do"] == "wait":
                time.sleep(instruction["seconds"])
        self.barrier.wait()
        if any(instruction["do"] == "raise" for instruction in mine):
            raise ValueError(f"rank {self.rank} has no memory left")
        return self.give([{"rank": self.rank, "count": len(requests), "digest": digest(requests)}])

    # The engine's own client looks these up as well.
    exposed_plan = exposed_execute = exposed_step


def digest(requests: list[dict]) -> str:
    """Of the requests in their order, whatever made them."""
    return hashlib.sha256(repr([sorted(one.items()) for one in requests]).encode()).hexdigest()
