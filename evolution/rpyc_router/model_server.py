"""The rank's process: an rpyc server around a worker. What the router may call, and nothing else.

Payloads are msgpack bytes. Bytes are immutable, so rpyc sends them by value, inside the call itself; a list would
travel as a reference and be pulled back by the callee, one round trip for each look at it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import msgspec
import rpyc
from rpyc.core.channel import Channel
from rpyc.utils.server import OneShotServer

from common.args import EngineArgs
from common.batch import BatchPlan
from common.messages import Request
from common.parallel.group import GroupSpec
from common.processes import ChildContext, configure_logging
from common.ranks import rank_label
from common.worker import Worker
from evolution.rpyc_router.model_client import PROTOCOL_CONFIG
from evolution.rpyc_router.stream import LinearStream

encode = msgspec.msgpack.encode
decode_requests = msgspec.msgpack.Decoder(list[Request]).decode
decode_plan = msgspec.msgpack.Decoder(BatchPlan).decode


def run_model_process(
    context: ChildContext, args: EngineArgs, replica: int, rank: int, group: GroupSpec, socket_path: str
) -> None:
    configure_logging(args.log_level, rank_label(args, replica, rank))
    service = ModelRpcService(context, Worker(args, replica, rank, group))
    context.mark("loaded")
    server = UncompressedServer(service, socket_path=socket_path, protocol_config=PROTOCOL_CONFIG)
    context.ready(service.worker.info)
    server.start()  # serves the router's connection, and returns when the router closes it
    service.worker.close()


class UncompressedServer(OneShotServer):
    """One connection, the router's; frames are not compressed, which rpyc's servers offer no setting for."""

    def _serve_client(self, sock: socket.socket, credentials: object) -> None:
        channel = Channel(LinearStream(sock), compress=False)
        self._handle_connection(self.service._connect(channel, dict(self.protocol_config)))


class ModelRpcService(rpyc.Service):
    """What the router may call. An exception here ends the process: the supervisor names this rank as the cause."""

    def __init__(self, context: ChildContext, worker: Worker) -> None:
        self.context = context
        self.worker = worker

    def exposed_step(self, requests: bytes) -> bytes:
        """`replicated`: a whole turn."""
        return self._guarded(lambda: encode(self.worker.step(decode_requests(requests))))

    def exposed_plan(self, requests: bytes) -> bytes:
        """`rank0`, on rank 0: the encoded plan, or nothing when there is nothing to run."""
        return self._guarded(lambda: self._plan(requests))

    def exposed_execute(self, plan: bytes) -> bytes:
        """`rank0`: execute; rank 0 also commits, and returns the output of the turn."""
        return self._guarded(lambda: self._execute(plan))

    def exposed_output(self) -> bytes:
        """`rank0`, on rank 0: the output of a turn that had nothing to execute."""
        return self._guarded(lambda: encode(self.worker.output()))

    def _plan(self, requests: bytes) -> bytes:
        plan = self.worker.plan(decode_requests(requests))
        return b"" if plan is None else encode(plan)

    def _execute(self, data: bytes) -> bytes:
        plan = decode_plan(data)
        ids = self.worker.execute(plan)
        if self.worker.rank != 0:
            return b""
        self.worker.commit(plan, ids)
        return encode(self.worker.output())

    def _guarded(self, call: Callable[[], bytes]) -> bytes:
        try:
            return call()
        except Exception as error:
            self.context.fail(error)
            raise
