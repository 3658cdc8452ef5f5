"""The engine on your broadcast: a stage of peer schedulers whose loop and broadcast are those that you write.

    python -m evolution run --stage experiments.labs.lab3_broadcast.stage:launch --model-path tiny --tp-size 2 \\
        --prompt "The capital of France is"
"""

from __future__ import annotations

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.messages import Request, TurnOutput
from common.parallel.group import GroupSpec, control_group
from common.process_tree import ProcessNode
from common.processes import ChildContext, Supervisor, configure_logging
from common.ranks import rank_env, rank_label, rank_name, replica_group


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    group = replica_group(args, endpoints.folder, 0)
    for rank in range(args.tp_size):
        supervisor.start(
            rank_name("lab3", args, 0, rank),
            f"{__name__}:run_rank",
            {"args": args, "endpoints": endpoints, "rank": rank, "group": group},
            rank_env(args),
        )


def check(args: EngineArgs) -> None:
    """ValueError where there would be nobody to broadcast to."""
    if args.tp_size < 2:
        raise ValueError("the stage of lab 3 broadcasts to other ranks: use --tp-size 2")


def process_tree(args: EngineArgs) -> list[ProcessNode]:
    channels = ["PULL ipc requests <- main", *["gloo broadcast <- rank 0"] * (args.tp_size - 1)]
    return [
        ProcessNode(rank_name("lab3", args, 0, rank), f"scheduler, rank {rank}", (channel,))
        for rank, channel in enumerate(channels)
    ]


def run_rank(context: ChildContext, args: EngineArgs, endpoints: Endpoints, rank: int, group: GroupSpec) -> None:
    from common.worker import Worker

    from . import adapters
    from .wire import Wire

    class CountingWorker(Worker):
        def step(self, messages: list[Request]) -> TurnOutput:
            self.loop_counts["turns_with_messages"] += bool(messages)
            return super().step(messages)

    configure_logging(args.log_level, rank_label(args, 0, rank))
    if rank == 0:
        requests = Receiver(context.zmq, endpoints.requests, Request)
        tokens = Sender(context.zmq, endpoints.token_batches)
        control = Sender(context.zmq, endpoints.control)
    worker = CountingWorker(args, 0, rank, group, slot=context.slot)
    counts = worker.loop_counts  # what StatsRequest tells of them is up to date within the turn, too
    counts |= {"turns_with_messages": 0, "broadcasts": 0, "broadcast_bytes": 0}

    def count_broadcast() -> None:
        counts["broadcasts"] += 1
        counts["broadcast_bytes"] += wire.sizes[-1]

    wire = Wire(control_group(group, rank), after=count_broadcast)
    broadcast = adapters.broadcast(wire)
    context.ready(worker.info)

    def send(output: TurnOutput) -> None:
        if output.tokens:
            tokens.send(output.tokens)
        for message in output.control:
            control.send(message)

    if rank == 0:
        adapters.lead(requests, broadcast, worker, send)
    else:
        adapters.follow(broadcast, worker)
    worker.close()
