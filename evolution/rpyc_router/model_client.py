"""The router's side of the remote model: start the ranks, connect, call all of them, wait for all, take rank 0's."""

from __future__ import annotations

import asyncio
from typing import Any

from common.args import EngineArgs
from common.batch import BatchPlan
from common.channels import Endpoints
from common.messages import Request, TurnOutput
from common.processes import ReadyReport, Supervisor
from common.ranks import rank_env, rank_name, replica_group
from common.tracing import NO_TRACE, NoTrace, Trace
from evolution.rpyc_router.constants import in_force
from evolution.rpyc_router.transport import ReferenceCalls, ValueCalls


def start_model_processes(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor, replica: int) -> None:
    group = replica_group(args, endpoints.folder, replica)
    for rank in range(args.tp_size):
        socket_path = f"{endpoints.folder}/dp{replica}tp{rank}.rpyc"
        supervisor.start(
            rank_name("rpyc", args, replica, rank),
            "evolution.rpyc_router.model_server:run_model_process",
            {
                "args": args,
                "replica": replica,
                "rank": rank,
                "group": group,
                "socket_path": socket_path,
                "secret": endpoints.secret,
            },
            rank_env(args),
            replica,
        )


def rpyc_addresses(args: EngineArgs, ready: list[ReadyReport], replica: int) -> list[str | int]:
    """Where the ranks of a replica listen, as they have said: a path, or a port of 127.0.0.1."""
    said = {report.name: report.info["rpyc_address"] for report in ready}
    return [said[rank_name("rpyc", args, replica, rank)] for rank in range(args.tp_size)]


class ModelRpcClient:
    """Calls all ranks of one replica. Lives on one asyncio loop."""

    def __init__(
        self, args: EngineArgs, addresses: list[str | int], secret: bytes, trace: Trace | NoTrace = NO_TRACE
    ) -> None:
        """Connect to ranks that are ready. Must be called on the loop's thread; `trace` is that thread's.
        secret: of the run."""
        self._trace = trace
        constants = in_force(args)
        self.step = self._step_replicated if args.scheduling == "replicated" else self._step_rank0
        calls = ValueCalls if constants.calls == "by value" else ReferenceCalls
        self._ranks = [calls(rank, address, constants, secret) for rank, address in enumerate(addresses)]
        self._sent = self._sent_so_far()  # what connecting took belongs to no turn
        self._busy = False

    async def _step_replicated(self, messages: list[Request]) -> TurnOutput:
        """Every rank is sent the requests and plans for itself; rank 0's output is the one that counts."""
        return await self._call_all("step", messages)

    async def _step_rank0(self, messages: list[Request]) -> TurnOutput:
        """Rank 0 plans; every rank is sent the plan and executes it, until rank 0 says that the turn is over. With the
        first plan goes whether there was nothing to do before this turn, which the other ranks cannot know."""
        rank0 = self._ranks[0]
        self._trace.part("encode")
        payload = rank0.pack(messages)
        self._trace.part("transport")
        reply = await rank0.call("plan", payload)
        self._trace.part("decode")
        answer = self._unpack(reply, pulled_by=1)
        waited = not self._busy
        while isinstance(answer, BatchPlan):
            answer = await self._call_all("execute", [answer], waited)
            waited = False
        self._busy = answer.busy
        return answer

    async def _call_all(self, method: str, argument: list[Any], *more: bool) -> Any:
        rank0 = self._ranks[0]
        self._trace.part("encode")
        payload = rank0.pack(argument)
        self._trace.part("transport")
        replies = await asyncio.gather(*[rank.call(method, payload, *more) for rank in self._ranks])
        self._trace.part("decode")
        return self._unpack(replies[0], pulled_by=len(self._ranks))

    def _unpack(self, reply: Any, pulled_by: int) -> BatchPlan | TurnOutput:
        """Of rank 0. `pulled_by`: how many ranks had the argument, and by reference a pickle of it each."""
        answer = self._ranks[0].unpack(reply, list[BatchPlan | TurnOutput])[0]
        if self._trace.on:
            before, self._sent = self._sent, self._sent_so_far()
            pickles = self._ranks[0].pickles * pulled_by
            self._trace.sent(self._sent[0] - before[0], self._sent[1] - before[1], pickles)
        return answer

    def _sent_so_far(self) -> tuple[int, int]:
        """Messages and bytes, to all ranks; by reference their callbacks are answered, too."""
        channels = [rank.channel for rank in self._ranks]
        return sum(channel.messages for channel in channels), sum(channel.sent_bytes for channel in channels)

    def close(self) -> None:
        """Close the connections, which ends the ranks' servers."""
        for rank in self._ranks:
            rank.close()
