"""The remote model: the rpyc server in each rank's process, and the client that the router calls it through.

Payloads are msgpack bytes. Bytes are immutable, so rpyc sends them by value, inside the call itself; a list would
travel as a reference and be pulled back by the callee, one round trip for each look at it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import msgspec
import rpyc
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection
from rpyc.core.stream import SocketStream
from rpyc.utils.server import OneShotServer

from common.args import EngineArgs
from common.batch import BatchPlan
from common.channels import Endpoints
from common.messages import Request
from common.parallel.group import GroupSpec
from common.processes import ChildContext, PeerLost, Supervisor, configure_logging
from common.ranks import rank_env, rank_label, rank_name, replica_group
from common.worker import TurnOutput, Worker

# rpyc gives up on a synchronous call after 30 s by default, on each side for itself. A rank may load for longer.
PROTOCOL_CONFIG = {"sync_request_timeout": None}
CONNECT_TIMEOUT = 10.0

encode = msgspec.msgpack.encode
decode_requests = msgspec.msgpack.Decoder(list[Request]).decode
decode_plan = msgspec.msgpack.Decoder(BatchPlan).decode
decode_output = msgspec.msgpack.Decoder(TurnOutput).decode


# ---------------------------------------------------------------------- the rank's process


def run_model_process(
    context: ChildContext, args: EngineArgs, replica: int, rank: int, group: GroupSpec, socket_path: str
) -> None:
    configure_logging(args.log_level, rank_label(args, replica, rank))
    service = ModelRpcService(context, Worker(args, replica, rank, group))
    server = UncompressedServer(service, socket_path=socket_path, protocol_config=PROTOCOL_CONFIG)
    context.ready(service.worker.info)
    server.start()  # serves the router's connection, and returns when the router closes it
    service.worker.close()


class UncompressedServer(OneShotServer):
    """One connection, the router's; frames are not compressed, which rpyc's servers offer no setting for."""

    def _serve_client(self, sock: socket.socket, credentials: object) -> None:
        channel = Channel(SocketStream(sock), compress=False)
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


# ------------------------------------------------------------------------- the router's side


def start_model_processes(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor, replica: int) -> list[str]:
    """Start the ranks of one replica; returns the unix sockets that they listen on."""
    group = replica_group(args, endpoints.folder, replica)
    paths = [f"{endpoints.folder}/dp{replica}tp{rank}.rpyc" for rank in range(args.tp_size)]
    for rank, path in enumerate(paths):
        supervisor.start(
            rank_name("rpyc", args, replica, rank),
            "evolution.rpyc_router.model_rpc:run_model_process",
            {"args": args, "replica": replica, "rank": rank, "group": group, "socket_path": path},
            rank_env(args),
        )
    return paths


class ModelRpcClient:
    """Calls all ranks of one replica. Lives on one asyncio loop, which also reads the replies: no threads."""

    def __init__(self, args: EngineArgs, paths: list[str]) -> None:
        """Connect to ranks that are ready. Must be called on the loop's thread."""
        self.step = self._step_replicated if args.resolved_scheduling() == "replicated" else self._step_rank0
        self._loop = asyncio.get_running_loop()
        self._connections = [_connect(path) for path in paths]
        self._pending: set[asyncio.Future] = set()
        roots = [connection.root for connection in self._connections]
        self._remote_step = [rpyc.async_(root.step) for root in roots]
        self._remote_execute = [rpyc.async_(root.execute) for root in roots]
        self._remote_plan = rpyc.async_(roots[0].plan)
        self._remote_output = rpyc.async_(roots[0].output)
        for rank, connection in enumerate(self._connections):
            self._loop.add_reader(connection.fileno(), self._serve, rank, connection)

    async def _step_replicated(self, messages: list[Request]) -> TurnOutput:
        """Every rank is sent the requests and plans for itself; rank 0's output is the one that counts."""
        payload = encode(messages)
        calls = [self._call(step, payload) for step in self._remote_step]
        outputs = await asyncio.gather(*calls)
        return decode_output(outputs[0])

    async def _step_rank0(self, messages: list[Request]) -> TurnOutput:
        """Rank 0 plans; every rank is sent the plan and executes it."""
        plan = await self._call(self._remote_plan, encode(messages))
        if not plan:
            return decode_output(await self._call(self._remote_output))
        calls = [self._call(execute, plan) for execute in self._remote_execute]
        outputs = await asyncio.gather(*calls)
        return decode_output(outputs[0])

    def close(self) -> None:
        """Close the connections, which ends the ranks' servers."""
        for connection in self._connections:
            self._loop.remove_reader(connection.fileno())
            connection.close()

    def _call(self, remote: Callable, *payload: bytes) -> asyncio.Future:
        future = self._loop.create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        remote(*payload).add_callback(lambda result: _settle(future, result))
        return future

    def _serve(self, rank: int, connection: Connection) -> None:
        """The socket is readable: take the replies that have arrived; their callbacks settle the futures."""
        try:
            connection.poll_all()
        except EOFError:
            self._loop.remove_reader(connection.fileno())
            for future in list(self._pending):
                future.set_exception(PeerLost(f"rank {rank} closed its rpyc connection"))


class LocalModelClient:
    """T = 1 and D = 1: the same worker, called on the router's loop. Nothing else runs there during a step."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def step(self, messages: list[Request]) -> TurnOutput:
        # One pass of the loop, so that the receive task runs between two turns.
        await asyncio.sleep(0)
        return self._worker.step(messages)

    def close(self) -> None:
        self._worker.close()


def _settle(future: asyncio.Future, result: rpyc.AsyncResult) -> None:
    if future.done():
        return
    try:
        future.set_result(result.value)
    except Exception as error:  # what the rank raised
        future.set_exception(error)


def _connect(path: str) -> Connection:
    """Retries for the instant between a rank's `ready` and its server's listen()."""
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while True:
        try:
            stream = SocketStream.unix_connect(path)
            stream.sock.settimeout(None)
            return rpyc.VoidService()._connect(Channel(stream, compress=False), PROTOCOL_CONFIG)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
