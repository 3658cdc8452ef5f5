"""The rank's process: an rpyc server around a worker. What the router may call, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rpyc

from common.args import EngineArgs
from common.batch import BatchPlan
from common.messages import Request, TurnOutput
from common.parallel.group import GroupSpec
from common.processes import ChildContext, configure_logging
from common.ranks import rank_label
from common.tracing import make_trace
from common.worker import Worker
from evolution.rpyc_router.constants import in_force
from evolution.rpyc_router.transport import CountingChannel, ReferenceEnd, ValueEnd, make_server


def run_model_process(
    context: ChildContext,
    args: EngineArgs,
    replica: int,
    rank: int,
    group: GroupSpec,
    socket_path: str,
    secret: bytes,
) -> None:
    configure_logging(args.log_level, rank_label(args, replica, rank))
    constants = in_force(args)
    end = ValueEnd if constants.calls == "by value" else ReferenceEnd
    trace = make_trace(args.trace_dir, context.name)  # the thread that serves is this one
    worker = Worker(args, replica, rank, group, constants.rules, trace, context.slot)
    service = ModelRpcService(context, worker, end)
    context.mark("loaded")
    server = make_server(service, socket_path, constants, secret)
    context.ready({**service.worker.info, "rpyc_address": server.port})
    server.start()  # serves the router's connection, and returns when the router closes it
    service.worker.close()
    trace.close()


class ModelRpcService(rpyc.Service):
    """What the router may call. An exception here ends the process: the supervisor names this rank as the cause."""

    def __init__(self, context: ChildContext, worker: Worker, end: type[ValueEnd] | type[ReferenceEnd]) -> None:
        self.context = context
        self.worker = worker
        self.end = end
        self.channel: CountingChannel  # set when the router has connected
        self._sent: tuple[int, int] | None = None  # messages and bytes, when a call last began

    def exposed_step(self, requests: Any) -> Any:
        """`replicated`: a whole turn."""
        return self._guarded(lambda: self.worker.step(self.end.take(requests, list[Request])))

    def exposed_plan(self, requests: Any) -> Any:
        """`rank0`, on rank 0: a plan to execute; or what the turn gave, when there is nothing to run."""
        return self._guarded(lambda: self._plan(self.end.take(requests, list[Request])))

    def exposed_execute(self, plan: Any, waited: bool) -> Any:
        """`rank0`: execute. Rank 0 also commits, and says as after `plan` what comes next; the others say nothing.
        `waited`: before this turn there was nothing to do, as rank 0 has noticed itself."""
        planned_here = self.worker.rank == 0  # then the turn began with `plan`
        if waited and not planned_here:
            self.worker.trace.waited()
        return self._guarded(lambda: self._execute(self.end.take(plan, list[BatchPlan])[0]), begins=not planned_here)

    def _plan(self, requests: list[Request]) -> BatchPlan | TurnOutput:
        return self.worker.plan(requests) or self.worker.output()

    def _execute(self, plan: BatchPlan) -> BatchPlan | TurnOutput | None:
        ids = self.worker.execute(plan)
        if self.worker.rank != 0:
            return None
        self.worker.commit(plan, ids)
        return self.worker.plan_further() or self.worker.output()

    def _guarded(self, call: Callable[[], Any], begins: bool = True) -> Any:
        """`begins`: a turn begins with this call."""
        trace = self.worker.trace
        if begins:
            trace.turn()
        trace.part("decode")
        if trace.on:
            self._count_sent()
        try:
            result = call()
            trace.part("encode")
            return self.end.give([result])
        except Exception as error:
            self.context.fail(error)
            raise
        finally:
            # rpyc sends the reply, and waits for the next call.
            trace.part("idle" if self.worker.scheduler and not self.worker.busy else "wait_for_router")

    def _count_sent(self) -> None:
        """What the last call took: its reply is sent when it is over. What connecting took is left out."""
        before, self._sent = self._sent, (self.channel.messages, self.channel.sent_bytes)
        if before is not None:
            pickles = self.end.pickles if self.worker.rank == 0 else 0  # by reference only rank 0's reply is pulled
            self.worker.trace.sent(self._sent[0] - before[0], self._sent[1] - before[1], pickles)
