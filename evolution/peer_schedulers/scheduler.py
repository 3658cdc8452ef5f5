"""The scheduler process, one per rank. All ranks run the same loop; only rank 0 has sockets."""

from __future__ import annotations

from typing import Any

from common.args import EngineArgs
from common.batch import Turn
from common.channels import Channel, Endpoints, Receiver, Sender
from common.messages import FinishedCount, Request, TurnOutput
from common.parallel.broadcast import MessageBroadcast, make_encoding
from common.parallel.group import GroupSpec, control_group
from common.processes import ChildContext, configure_logging
from common.ranks import rank_label
from common.tracing import make_trace
from common.worker import Worker
from evolution.peer_schedulers.constants import in_force
from evolution.peer_schedulers.overlap import ForwardThread, event_loop_overlap


def run_scheduler_process(context: ChildContext, **settings: Any) -> None:
    """`settings` are PeerScheduler's."""
    scheduler = PeerScheduler(context, **settings)
    context.ready(scheduler.worker.info)
    if scheduler.overlap:
        event_loop_overlap(scheduler, ForwardThread(context, scheduler.worker, scheduler.trace_dir))
    elif scheduler.scheduling == "replicated":
        scheduler.event_loop_normal()
    elif scheduler.rank == 0:
        scheduler.event_loop_planner()
    else:
        scheduler.event_loop_executor()
    scheduler.worker.close()
    scheduler.trace.close()


class PeerScheduler:
    def __init__(
        self,
        context: ChildContext,
        args: EngineArgs,
        endpoints: Endpoints,
        replica: int,
        rank: int,
        group: GroupSpec,
        requests: Channel,
        finished: Channel | None,
    ) -> None:
        configure_logging(args.log_level, rank_label(args, replica, rank))
        self.trace_dir = args.trace_dir
        self.trace = make_trace(args.trace_dir, context.name)
        self.overlap = args.overlap
        self.rank = rank
        self.replica = replica
        self.tp_size = args.tp_size
        self.scheduling = args.scheduling
        if rank == 0:
            # Bind before the model loads, so that whoever sends to this rank can connect meanwhile.
            self.recv_from_tokenizer = Receiver(context.zmq, requests, Request)
            self.send_to_detokenizer = Sender(context.zmq, endpoints.token_batches)
            self.send_to_main = Sender(context.zmq, endpoints.control)
            self.send_to_controller = Sender(context.zmq, finished) if finished else None
        constants = in_force(args)
        self.blocks = args.idle == "block"
        self.worker = Worker(args, replica, rank, group, constants.rules, self.trace, context.slot)
        context.mark("loaded")
        if args.tp_size > 1:
            encoding = make_encoding(constants.broadcast, list[Request] if args.scheduling == "replicated" else Turn)
            counts = self.worker.loop_counts
            self.broadcast = MessageBroadcast(control_group(group, rank), encoding, counts, self.trace)

    # ------------------------------------------------------------------ --scheduling replicated

    def event_loop_normal(self) -> None:
        """Every rank plans from the same requests: what travels each turn is the input."""
        while True:
            self.trace.turn()
            messages = self.recv_requests()
            output = self.worker.step(messages)
            if self.rank == 0:
                self.send(output)
            if output.stop:
                return

    def recv_requests(self) -> list[Request]:
        if self.rank != 0:
            return self.broadcast.receive(idle=not self.worker.busy)
        messages = self.drain_requests()
        if self.tp_size > 1:
            self.broadcast.send(messages)
        return messages

    def drain_requests(self) -> list[Request]:
        """Rank 0: all that has arrived; with nothing waiting or running, block until something does."""
        if self.blocks and not self.worker.busy:
            self.trace.part("idle")
            self.recv_from_tokenizer.wait()
        self.trace.part("recv_requests")
        return self.recv_from_tokenizer.drain(wait=False)

    # ------------------------------------------------------------------ --scheduling rank0

    def event_loop_planner(self) -> None:
        """Rank 0 plans alone: what travels each turn is the batch."""
        while True:
            self.trace.turn()
            waited = not self.worker.busy
            messages = self.drain_requests()
            plan = self.worker.plan(messages)
            if self.tp_size > 1:
                self.broadcast.send(Turn(plan, self.worker.stopping, waited))
            if plan is not None:
                self.worker.commit(plan, self.worker.execute(plan))
            output = self.worker.output()
            self.send(output)
            if output.stop:
                return

    def event_loop_executor(self) -> None:
        self.trace.turn()
        while not (turn := self.broadcast.receive()).stop:
            if turn.waited:
                self.trace.waited()
            if turn.plan is not None:
                self.worker.execute(turn.plan)
            self.trace.turn()

    # ------------------------------------------------------------------ outputs

    def send(self, output: TurnOutput) -> None:
        if output.tokens:
            self.send_to_detokenizer.send(output.tokens, self.trace)
        if self.send_to_controller and output.finished:
            self.send_to_controller.send(FinishedCount(self.replica, output.finished), self.trace)
        for message in output.control:
            self.send_to_main.send(message, self.trace)
