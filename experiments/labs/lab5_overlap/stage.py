"""The peer stage with your loop in every rank: a stage of one's own.

python -m evolution run --stage experiments.labs.lab5_overlap.stage:launch --model-path tiny --tp-size 2
"""

from __future__ import annotations

from typing import Any

from common.args import EngineArgs
from common.channels import Endpoints
from common.processes import ChildContext, Supervisor
from common.ranks import rank_env, rank_name, replica_group
from evolution.peer_schedulers import process_tree
from evolution.peer_schedulers.scheduler import PeerScheduler

from . import adapters
from .harness import Executor

__all__ = ["check", "launch", "process_tree"]


def check(args: EngineArgs) -> None:
    if args.device == "sim":
        raise ValueError("this lab's stage feeds token ids, which sim does not look at: use --device cpu")


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    shared = {"args": args, "endpoints": endpoints, "replica": 0, "group": replica_group(args, endpoints.folder, 0)}
    for rank in range(args.tp_size):
        settings = {**shared, "rank": rank, "requests": endpoints.requests, "finished": None}
        supervisor.start(rank_name("peer", args, 0, rank), f"{__name__}:run_rank", settings, rank_env(args))


def run_rank(context: ChildContext, **settings: Any) -> None:
    scheduler = PeerScheduler(context, **settings)
    context.ready(scheduler.worker.info)
    adapters.event_loop(scheduler, Executor(scheduler.worker))
    scheduler.worker.close()
    scheduler.trace.close()
