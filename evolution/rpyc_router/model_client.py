"""The router's side of the remote model: start the ranks, connect, call all of them, wait for all, take rank 0's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import rpyc
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection

from common.args import EngineArgs
from common.channels import Endpoints
from common.messages import Request, TurnOutput
from common.processes import PeerLost, Supervisor
from common.ranks import rank_env, rank_name, replica_group
from evolution.rpyc_router.stream import LinearStream

# rpyc gives up on a synchronous call after 30 s by default, on each side for itself. A rank may take longer.
PROTOCOL_CONFIG = {"sync_request_timeout": None}
CONNECT_TIMEOUT = 10.0

encode = msgspec.msgpack.encode
decode_output = msgspec.msgpack.Decoder(TurnOutput).decode


def start_model_processes(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor, replica: int) -> list[str]:
    """Start the ranks of one replica; returns the unix sockets that they listen on."""
    group = replica_group(args, endpoints.folder, replica)
    paths = [f"{endpoints.folder}/dp{replica}tp{rank}.rpyc" for rank in range(args.tp_size)]
    for rank, path in enumerate(paths):
        supervisor.start(
            rank_name("rpyc", args, replica, rank),
            "evolution.rpyc_router.model_server:run_model_process",
            {"args": args, "replica": replica, "rank": rank, "group": group, "socket_path": path},
            rank_env(args),
        )
    return paths


class ModelRpcClient:
    """Calls all ranks of one replica. Lives on one asyncio loop, which also reads the replies: no threads."""

    def __init__(self, args: EngineArgs, paths: list[str]) -> None:
        """Connect to ranks that are ready. Must be called on the loop's thread."""
        self.step = self._step_replicated if args.scheduling == "replicated" else self._step_rank0
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
            while connection.poll():  # poll_all would swallow the end of the connection
                pass
        except EOFError:
            self._loop.remove_reader(connection.fileno())
            for future in list(self._pending):
                if not future.done():
                    future.set_exception(PeerLost(f"rank {rank} closed its rpyc connection"))


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
            stream = LinearStream.unix_connect(path)
            stream.sock.settimeout(None)
            return rpyc.VoidService()._connect(Channel(stream, compress=False), PROTOCOL_CONFIG)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
