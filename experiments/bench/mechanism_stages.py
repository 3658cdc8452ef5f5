"""The mechanisms that the stages use, in the stages' own code: rpyc calls, gloo broadcasts, ZMQ channels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import torch.distributed as dist
import zmq

from common.args import EngineArgs
from common.channels import Channel, Receiver, Sender
from common.messages import Request, TurnOutput
from common.parallel.broadcast import MessageBroadcast, make_encoding
from common.parallel.group import GroupSpec, control_group
from common.processes import ChildContext
from common.tracing import NO_TRACE
from evolution.rpyc_router.constants import in_force
from evolution.rpyc_router.model_client import ModelRpcClient
from evolution.rpyc_router.model_server import ModelRpcService
from evolution.rpyc_router.transport import ReferenceEnd, ValueEnd, make_server
from experiments.bench.mechanism_base import Mechanism, Place, Took


class NoWorker:
    """In the worker's place: notes that the requests are here, and answers as after a turn without output."""

    trace = NO_TRACE
    scheduler = None

    def __init__(self, took: Took) -> None:
        self._took = took

    def step(self, requests: list[Request]) -> TurnOutput:
        self._took(requests)
        return TurnOutput(tokens=None, control=[], finished=0, busy=False, stop=False)


class RpycCalls(Mechanism):
    """The router's client calls `step` of every rank's server at once, and waits for all; rank 0's answer counts."""

    constants: ClassVar[str]
    answers = True

    def _args(self, place: Place) -> EngineArgs:
        return EngineArgs(stage="rpyc", tp_size=place.ranks, scheduling="replicated", constants=self.constants)

    def _worker(self, index: int, took: Took) -> NoWorker:
        return NoWorker(took)

    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> str | int:
        constants = in_force(self._args(place))
        end = ValueEnd if constants.calls == "by value" else ReferenceEnd
        service = ModelRpcService(context, self._worker(index, took), end)
        self._server = make_server(service, place.path(index), constants, secret=b"")
        return self._server.port

    def serve(self) -> None:
        self._server.start()  # returns when the driver closes its connection

    async def connect(self, place: Place, addresses: list[str | int]) -> None:
        self._client = ModelRpcClient(self._args(place), addresses, secret=b"")

    async def send(self, messages: list[Any]) -> None:
        await self._client.step(messages)

    def close(self) -> None:
        self._client.close()


class RpycReference(RpycCalls):
    name = "rpyc-reference"
    what = "rpyc 0.1.5: list by reference, pickle pulled back, TCP, zlib"
    constants = "era"
    seconds_per_mib = 0.05


class RpycValue(RpycCalls):
    name = "rpyc-value"
    what = "rpyc: msgpack by value, unix socket"
    constants = "level"
    carries_lists = False


class GlooBroadcast(Mechanism):
    encoding: ClassVar[str]

    def _join(self, place: Place, rank: int) -> MessageBroadcast:
        spec = GroupSpec.create(place.ranks, "gloo", "cpu", Path(place.folder), str(place.number))
        spec = dataclasses.replace(spec, secret=bytes(16))  # the same in every process, each of which makes a spec
        return MessageBroadcast(control_group(spec, rank), make_encoding(self.encoding, list[Request]), {})

    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> None:
        self._place, self._rank, self._took = place, index + 1, took

    def serve(self) -> None:
        broadcast = self._join(self._place, self._rank)  # blocks until all have come
        for _ in range(self._place.steps):
            self._took(broadcast.receive())
        dist.destroy_process_group()

    async def connect(self, place: Place, addresses: list[None]) -> None:
        self._broadcast = self._join(place, 0)

    async def send(self, messages: list[Any]) -> None:
        self._broadcast.send(messages)

    def close(self) -> None:
        dist.destroy_process_group()


class GlooList(GlooBroadcast):
    name = "gloo-list"
    what = "gloo 0.2.0: broadcast of the pickle as a list of ints"
    encoding = "list of ints"
    seconds_per_mib = 0.09


class GlooBuffer(GlooBroadcast):
    name = "gloo-buffer"
    what = "gloo 0.4.0: broadcast of the pickle as a buffer"
    encoding = "numpy buffer"


class GlooMsgpack(GlooBroadcast):
    name = "gloo-msgpack"
    what = "gloo: broadcast of msgpack"
    encoding = "msgpack"
    carries_lists = False


class ZmqPush(Mechanism):
    """A PUSH socket for each receiver."""

    transport: ClassVar[str]

    def _channel(self, place: Place, index: int) -> Channel:
        return Channel(place.path(index), self.transport, place.codec)

    def listen(self, context: ChildContext, place: Place, index: int, took: Took) -> None:
        self._context = zmq.Context()
        self._receiver = Receiver(self._context, self._channel(place, index), list[Request])
        self._place, self._took = place, took

    def serve(self) -> None:
        for _ in range(self._place.steps):
            self._took(self._receiver.receive())
        self._context.destroy()

    async def connect(self, place: Place, addresses: list[None]) -> None:
        self._context = zmq.Context()
        self._senders = [Sender(self._context, self._channel(place, index)) for index in range(len(addresses))]

    async def send(self, messages: list[Any]) -> None:
        for sender in self._senders:
            sender.send(messages)

    def close(self) -> None:
        self._context.destroy()


class ZmqIpc(ZmqPush):
    name = "zmq-ipc"
    what = "ZMQ PUSH, ipc, msgpack"
    transport = "ipc"


class ZmqTcp(ZmqPush):
    name = "zmq-tcp"
    what = "ZMQ PUSH to 0.3.2: TCP, pickle"
    transport = "tcp"

    def _channel(self, place: Place, index: int) -> Channel:
        return Channel(place.path(index), self.transport, "pickle")
