"""The data-parallel controller: a process of its own that starts the replicas and hands each request to one.

It is a hop: main -> controller -> rank 0 of a replica, by ZMQ. 0.3.3.post1, the first release with it, put control
messages on a `queue` attribute that a ZMQ socket does not have, and one abort killed it; 0.4.1.post7 sent them to
every T-th replica; `shortest_queue` raised NotImplementedError in both. Here every replica gets every control message,
and both methods work.
"""

from __future__ import annotations

import zmq

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.dispatch import Dispatcher
from common.faults import in_process
from common.lost_replicas import LostReplicas
from common.messages import FinishedCount, GenerateRequest, Request, StopRequest
from common.processes import ChildContext, configure_logging
from common.supervision import exceptions
from common.tracing import make_trace
from evolution.peer_schedulers.replica import start_replica


def run_data_parallel_controller_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "DP controller")
    controller = DataParallelController(context, args, endpoints)
    context.ready()
    controller.event_loop()
    controller.trace.close()


class DataParallelController:
    def __init__(self, context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
        in_process(args, context)
        context.slot.is_dispatcher()
        self.slot, self.board = context.slot, context.board
        self.trace = make_trace(args.trace_dir, context.name)
        self.supervisor = context.supervisor
        self.dispatcher = Dispatcher(args.load_balance_method, args.dp_size)
        finished = endpoints.channel("finished")
        self.recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request)
        self.recv_finished = Receiver(context.zmq, finished, FinishedCount)
        channels = [endpoints.channel(f"replica{replica}.requests") for replica in range(args.dp_size)]
        for replica, channel in enumerate(channels):
            start_replica(args, endpoints, self.supervisor, replica, channel, finished)
        self.supervisor.wait_ready()
        self.workers = [Sender(context.zmq, channel) for channel in channels]
        if args.supervision == "era":
            context.supervisor.hear_only(exceptions)  # a rank's was a SIGQUIT to its parent
        self.lost = LostReplicas(context, args, endpoints, self.take_out)
        self.poll_timeout = None if args.idle == "block" else 0

    def event_loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self.recv_from_tokenizer.socket, zmq.POLLIN)
        poller.register(self.recv_finished.socket, zmq.POLLIN)
        poller.register(self.lost.wake, zmq.POLLIN)
        while True:
            self.trace.turn()
            self.trace.part("idle")
            poller.poll(self.poll_timeout)
            self.trace.part("recv_requests")
            for report in self.recv_finished.drain(wait=False):
                self.dispatcher.finished(report.replica, report.count)
            messages = self.recv_from_tokenizer.drain(wait=False)
            self.slot.take(len(messages))
            self.trace.part("send_output")
            for message in messages:
                self.dispatch(message)
                if isinstance(message, StopRequest):
                    return
            self.lost.look()

    def dispatch(self, message: Request) -> None:
        """A request to one replica, any other message to all of them."""
        if isinstance(message, GenerateRequest):
            replica = self.dispatcher.pick()
            self.lost.note(replica, message.rid)
            self.send(replica, message)
            return
        if isinstance(message, StopRequest):
            self.supervisor.expect_exit()
        for replica in range(len(self.workers)):
            if replica not in self.lost.replicas:
                self.send(replica, message)

    def send(self, replica: int, message: Request) -> None:
        self.board.to_replica(replica)
        self.workers[replica].send(message, self.trace)

    def take_out(self, replica: int) -> None:
        """It is no more."""
        self.dispatcher.lose(replica)
        self.workers[replica].close()
