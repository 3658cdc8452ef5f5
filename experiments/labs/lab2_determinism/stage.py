"""The engine with your log in every rank: peer schedulers that write each turn's digest into a folder.

LAB2_DIGESTS=/tmp/digests python -m evolution run --stage experiments.labs.lab2_determinism.stage:launch ...
python -m experiments.labs.lab2_determinism.find /tmp/digests
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from common.args import EngineArgs
from common.batch import BatchPlan, Sampled
from common.channels import Endpoints, Receiver, Sender
from common.messages import Request
from common.parallel.group import GroupSpec, control_group
from common.process_tree import ProcessNode
from common.processes import ChildContext, Supervisor, configure_logging
from common.ranks import rank_env, rank_label, rank_name, replica_group

FOLDER = "LAB2_DIGESTS"


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    group = replica_group(args, endpoints.folder, 0)
    for rank in range(args.tp_size):
        supervisor.start(
            rank_name("lab2", args, 0, rank),
            f"{__name__}:run_rank",
            {"args": args, "endpoints": endpoints, "rank": rank, "group": group},
            rank_env(args),
        )


def check(args: EngineArgs) -> None:
    """ValueError where there would be nothing to compare, or nowhere to write it."""
    if args.tp_size < 2:
        raise ValueError("the stage of lab 2 compares ranks: use --tp-size 2")
    if FOLDER not in os.environ:
        raise ValueError(f"the stage of lab 2 needs a folder for its digests: set {FOLDER}=/tmp/digests")


def process_tree(args: EngineArgs) -> list[ProcessNode]:
    channels = ["PULL ipc requests <- main", *["gloo broadcast <- rank 0"] * (args.tp_size - 1)]
    return [
        ProcessNode(rank_name("lab2", args, 0, rank), f"scheduler, rank {rank}", (channel,))
        for rank, channel in enumerate(channels)
    ]


def run_rank(context: ChildContext, args: EngineArgs, endpoints: Endpoints, rank: int, group: GroupSpec) -> None:
    from common.parallel.broadcast import MessageBroadcast, make_encoding
    from common.worker import Worker

    configure_logging(args.log_level, rank_label(args, 0, rank))
    if rank == 0:
        requests = Receiver(context.zmq, endpoints.requests, Request)
        tokens = Sender(context.zmq, endpoints.token_batches)
        control = Sender(context.zmq, endpoints.control)
    worker = Worker(args, 0, rank, group, slot=context.slot)
    log_plans(worker, rank)
    encoding = make_encoding("msgpack", list[Request])
    broadcast = MessageBroadcast(control_group(group, rank), encoding, worker.loop_counts)
    context.ready(worker.info)
    stop = False
    while not stop:
        if rank == 0:
            messages = requests.drain(wait=not worker.busy)
            broadcast.send(messages)
        else:
            messages = broadcast.receive()
        output = worker.step(messages)
        if rank == 0:
            if output.tokens:
                tokens.send(output.tokens)
            for message in output.control:
                control.send(message)
        stop = output.stop
    worker.close()


def log_plans(worker: Any, rank: int) -> None:
    """Before each forward of a Worker: the plan goes into your log, and the digest of this turn into a line of a file.
    A worker counts as turns only those that have a plan."""
    from . import adapters

    log = adapters.turn_log()
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"TP{rank}.txt").open("w", buffering=1)
    execute = worker.execute

    def logged(plan: BatchPlan) -> Sampled:
        log.add(plan)
        file.write(f"{log.digest(plan.turn)}\n")
        return execute(plan)

    worker.execute = logged
