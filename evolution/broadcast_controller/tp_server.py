"""The process of a rank >= 1: receive the broadcast, step, drop the output; rank 0's is the one that is sent."""

from __future__ import annotations

from common.args import EngineArgs
from common.batch import Turn
from common.messages import Request
from common.parallel.broadcast import MessageBroadcast, make_encoding
from common.parallel.group import GroupSpec, control_group
from common.processes import ChildContext, configure_logging
from common.ranks import rank_label
from common.tracing import make_trace
from common.worker import Worker
from evolution.broadcast_controller.constants import in_force


def run_tp_server_process(context: ChildContext, args: EngineArgs, replica: int, rank: int, group: GroupSpec) -> None:
    configure_logging(args.log_level, rank_label(args, replica, rank))
    constants = in_force(args)
    trace = make_trace(args.trace_dir, context.name)
    worker = Worker(args, replica, rank, group, constants.rules, trace, context.slot)
    context.mark("loaded")
    encoding = make_encoding(constants.broadcast, list[Request] if args.scheduling == "replicated" else Turn)
    broadcast = MessageBroadcast(control_group(group, rank), encoding, worker.loop_counts, trace)
    context.ready(worker.info)

    trace.turn()
    if args.scheduling == "replicated":
        while not worker.step(broadcast.receive(idle=not worker.busy)).stop:
            trace.turn()
    else:
        while not (turn := broadcast.receive()).stop:
            if turn.waited:
                trace.waited()
            if turn.plan is not None:
                worker.execute(turn.plan)
            trace.turn()
    worker.close()
    trace.close()
