"""ControllerSingle: the control process of one replica, with rank 0 inside it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from common.args import EngineArgs
from common.batch import BatchPlan, Turn
from common.channels import Endpoints, Receiver, Sender, count_pickled
from common.messages import Request, TurnOutput
from common.parallel.group import control_group
from common.processes import ChildContext, configure_logging
from common.ranks import rank_env, rank_label, rank_name, replica_group
from common.supervision import nothing
from common.tracing import make_trace
from evolution.broadcast_controller.constants import in_force


def run_controller_single_process(context: ChildContext, **settings: Any) -> None:
    """`settings` are ControllerSingle's."""
    controller = ControllerSingle(context, **settings)
    context.ready(controller.tp_server.info)
    if controller.supervision == "era":
        context.supervisor.hear_only(nothing)  # rank 0 notices when the broadcast breaks
    if controller.scheduling == "replicated":
        controller.loop_for_forward()
    else:
        controller.loop_for_forward_planner()
    controller.tp_server.close()
    controller.trace.close()


class ControllerSingle:
    def __init__(
        self,
        context: ChildContext,
        args: EngineArgs,
        endpoints: Endpoints,
        replica: int,
        queue: multiprocessing.Queue | None,
        finished: Connection | None,
    ) -> None:
        configure_logging(args.log_level, rank_label(args, replica, 0))
        self.trace = make_trace(args.trace_dir, context.name)
        self.tp_size = args.tp_size
        self.scheduling = args.scheduling
        self.supervision = args.supervision
        self.supervisor = context.supervisor
        self.queue = queue
        self.send_finished = finished

        # The other ranks first, then rank 0 in place: they load side by side.
        group = replica_group(args, endpoints.folder, replica)
        for rank in range(1, args.tp_size):
            self.supervisor.start(
                rank_name("tp-server", args, replica, rank),
                "evolution.broadcast_controller.tp_server:run_tp_server_process",
                {"args": args, "replica": replica, "rank": rank, "group": group},
                rank_env(args),
            )
        # Not before: rank 0's import of torch would come before that of the others, not beside it.
        from common.parallel.broadcast import MessageBroadcast, make_encoding
        from common.worker import Worker

        context.mark("imported")
        self.recv_from_tokenizer = None if queue else Receiver(context.zmq, endpoints.requests, Request)
        self.send_to_detokenizer = Sender(context.zmq, endpoints.token_batches)
        self.send_to_main = Sender(context.zmq, endpoints.control)
        constants = in_force(args)
        self.blocks = args.idle == "block"
        self.tp_server = Worker(args, replica, 0, group, constants.rules, self.trace, context.slot)
        context.mark("loaded")
        if args.tp_size > 1:
            encoding = make_encoding(constants.broadcast, list[Request] if args.scheduling == "replicated" else Turn)
            counts = self.tp_server.loop_counts
            self.broadcast = MessageBroadcast(control_group(group, 0), encoding, counts, self.trace)

    # ------------------------------------------------------------------ --scheduling replicated

    def loop_for_forward(self) -> None:
        """The ranks are sent what arrived, and every one of them plans."""
        while True:
            self.trace.turn()
            messages = self.recv_requests()
            if self.tp_size > 1:
                self.broadcast.send(messages)
            output = self.tp_server.step(messages)
            self.send(output)
            if output.stop:
                return

    # ------------------------------------------------------------------ --scheduling rank0

    def loop_for_forward_planner(self) -> None:
        """Rank 0 plans, and the ranks are sent the batch."""
        while True:
            self.trace.turn()
            waited = not self.tp_server.busy
            messages = self.recv_requests()
            plan = self.tp_server.plan(messages)
            self.broadcast_turn(plan, waited)
            while plan is not None:
                self.tp_server.commit(plan, self.tp_server.execute(plan))
                plan = self.tp_server.plan_further()
                if plan is not None:
                    self.broadcast_turn(plan, waited=False)
            output = self.tp_server.output()
            self.send(output)
            if output.stop:
                return

    def broadcast_turn(self, plan: BatchPlan | None, waited: bool) -> None:
        if self.tp_size > 1:
            self.broadcast.send(Turn(plan, self.tp_server.stopping, waited))

    # ------------------------------------------------------------------ in and out

    def recv_requests(self) -> list[Request]:
        """All that has arrived; with nothing waiting or running, block until something does, unless told to spin."""
        wait = self.blocks and not self.tp_server.busy
        if wait:
            self.trace.part("idle")
        if self.queue is None:
            if wait:
                self.recv_from_tokenizer.wait()
            self.trace.part("recv_requests")
            return self.recv_from_tokenizer.drain(wait=False)
        messages = [self.queue.get()] if wait else []
        self.trace.part("recv_requests")
        while not self.queue.empty():
            messages.append(self.queue.get())
        return messages

    def send(self, output: TurnOutput) -> None:
        if output.stop:
            self.supervisor.expect_exit()
        if output.tokens:
            self.send_to_detokenizer.send(output.tokens, self.trace)
        if self.send_finished and output.finished:
            self.send_finished.send(output.finished)
            count_pickled(output.finished, self.trace)
        for message in output.control:
            self.send_to_main.send(message, self.trace)
