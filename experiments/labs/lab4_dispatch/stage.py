"""The peer stage with a data-parallel controller that runs this lab's `controller_turn`: a stage of one's own.

    python -m evolution run --stage experiments.labs.lab4_dispatch.stage:launch_outstanding --dp-size 2 --device sim

What differs from `evolution.peer_schedulers`: the controller's loop calls the student's code, and rank 0 of each
replica says which requests ended (`Finished`), not only how many.
"""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from common.args import EngineArgs
from common.channels import Channel, Endpoints, Receiver, Sender
from common.messages import Request, StopRequest, TurnOutput
from common.processes import ChildContext, Supervisor, configure_logging
from common.ranks import rank_env, rank_name, replica_group
from evolution.peer_schedulers import process_tree
from evolution.peer_schedulers.scheduler import PeerScheduler

from . import adapters
from .messages import Finished

__all__ = ["SUPPORTS", "check", "launch_outstanding", "launch_prefix", "process_tree"]

SUPPORTS = frozenset({"dp"})


def check(args: EngineArgs) -> None:
    if args.dp_size == 1:
        raise ValueError("this lab's stage has a controller to dispatch: use --dp-size 2 or more")


def launch_outstanding(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    _launch(args, endpoints, supervisor, "outstanding")


def launch_prefix(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    _launch(args, endpoints, supervisor, "prefix")


def _launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor, rule: str) -> None:
    settings = {"args": args, "endpoints": endpoints, "rule": rule}
    supervisor.start("evo-dp-controller", f"{__name__}:run_controller", settings)


def run_controller(context: ChildContext, args: EngineArgs, endpoints: Endpoints, rule: str) -> None:
    configure_logging(args.log_level, "DP controller")
    context.slot.is_dispatcher()
    requests = Receiver(context.zmq, endpoints.requests, Request)
    finished = endpoints.channel("finished")
    reports = Receiver(context.zmq, finished, Finished)
    channels = [endpoints.channel(f"replica{replica}.requests") for replica in range(args.dp_size)]
    for replica, channel in enumerate(channels):
        _start_replica(args, endpoints, context.supervisor, replica, channel, finished)
    context.supervisor.wait_ready()
    senders = [Sender(context.zmq, channel) for channel in channels]
    dispatcher = adapters.make_rule(rule, args.dp_size, args.max_total_tokens)

    def send(replica: int, message: Request) -> None:
        if isinstance(message, StopRequest):
            context.supervisor.expect_exit()
        context.board.to_replica(replica)
        senders[replica].send(message)

    poller = zmq.Poller()
    poller.register(requests.socket, zmq.POLLIN)
    poller.register(reports.socket, zmq.POLLIN)
    context.ready()
    goes_on = True
    while goes_on:
        poller.poll()
        ended = reports.drain(wait=False)
        messages = requests.drain(wait=False)
        context.slot.take(len(messages))
        goes_on = adapters.controller_turn(dispatcher, ended, messages, send, list(range(args.dp_size)))


def _start_replica(
    args: EngineArgs,
    endpoints: Endpoints,
    supervisor: Supervisor,
    replica: int,
    requests: Channel,
    finished: Channel,
) -> None:
    group = replica_group(args, endpoints.folder, replica)
    shared = {"args": args, "endpoints": endpoints, "replica": replica, "group": group}
    for rank in range(args.tp_size):
        settings = {**shared, "rank": rank, "requests": requests, "finished": finished}
        name = rank_name("peer", args, replica, rank)
        supervisor.start(name, f"{__name__}:run_rank", settings, rank_env(args), replica)


def run_rank(context: ChildContext, **settings: Any) -> None:
    rank = Rank(context, **settings)
    context.ready(rank.worker.info)
    rank.event_loop_normal()
    rank.worker.close()


class Rank(PeerScheduler):
    def send(self, output: TurnOutput) -> None:
        """Which requests ended, before their last tokens: the controller is to know when the caller does."""
        ended = [chunk.rid for chunk in output.tokens.chunks if chunk.finish] if output.tokens else []
        if ended:
            self.send_to_controller.send(Finished(self.replica, ended))
        super().send(msgspec.structs.replace(output, finished=0))
