"""ControllerMulti: starts one ControllerSingle per replica and hands each request to one of them.

Requests travel through a `multiprocessing.Queue` per replica: pickled by a feeder thread into a pipe. 0.2.0 measured
a replica's load by that queue's length, which is only what its loop has not yet drained (so with era constants); else
every replica reports what it finished through a pipe, so that outstanding work can be counted.
"""

from __future__ import annotations

import _multiprocessing
import multiprocessing
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

import zmq

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, count_pickled
from common.dispatch import BacklogDispatcher, Dispatcher
from common.faults import in_process
from common.lost_replicas import LostReplicas
from common.messages import GenerateRequest, Request, StopRequest
from common.processes import ChildContext, configure_logging
from common.ranks import rank_env, rank_name
from common.supervision import exceptions
from common.tracing import make_trace
from evolution.broadcast_controller.constants import in_force


def run_controller_multi_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "controller")
    controller = ControllerMulti(context, args, endpoints)
    context.supervisor.wait_ready()
    for queue in controller.queues:
        unlink_names(queue)
    if args.supervision == "era":
        context.supervisor.hear_only(exceptions)  # rank 0's killed the tree of its parent
    controller.lost = LostReplicas(context, args, endpoints, controller.take_out)
    context.ready()
    controller.loop()
    controller.trace.close()
    context.leave()  # while the queues live: at their end they would look for the names that are gone


class ControllerMulti:
    def __init__(self, context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
        in_process(args, context)
        context.slot.is_dispatcher()
        self.slot, self.board = context.slot, context.board
        self.trace = make_trace(args.trace_dir, context.name)
        self.supervisor = context.supervisor
        self.lost: LostReplicas  # once all are ready
        self.recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request)
        self.queues = []
        self.finished_readers: dict[int, Connection] = {}  # by replica
        spawn = multiprocessing.get_context("spawn")
        for replica in range(args.dp_size):
            queue = spawn.Queue()
            reader, writer = spawn.Pipe(duplex=False)
            self.supervisor.start(
                rank_name("controller", args, replica, 0),
                "evolution.broadcast_controller.controller_single:run_controller_single_process",
                {"args": args, "endpoints": endpoints, "replica": replica, "queue": queue, "finished": writer},
                rank_env(args),
                replica,
            )
            writer.close()
            self.queues.append(queue)
            self.finished_readers[replica] = reader
        if in_force(args).dispatch == "backlog":
            self.dispatcher = BacklogDispatcher(args.load_balance_method, args.dp_size, self.backlogs)
        else:
            self.dispatcher = Dispatcher(args.load_balance_method, args.dp_size)
        self.poller = zmq.Poller()
        self.poll_timeout = None if args.idle == "block" else 0

    def backlogs(self) -> list[int]:
        return [queue.qsize() for queue in self.queues]

    def loop(self) -> None:
        poller = self.poller
        poller.register(self.recv_from_tokenizer.socket, zmq.POLLIN)
        poller.register(self.lost.wake, zmq.POLLIN)
        for reader in self.finished_readers.values():
            poller.register(reader, zmq.POLLIN)
        while True:
            self.trace.turn()
            self.trace.part("idle")
            poller.poll(self.poll_timeout)
            self.trace.part("recv_requests")
            for replica in list(self.finished_readers):
                self.take_finished(replica)
            messages = self.recv_from_tokenizer.drain(wait=False)
            self.slot.take(len(messages))
            self.trace.part("send_output")
            for message in messages:
                self.dispatch(message)
                if isinstance(message, StopRequest):
                    return
            self.lost.look()

    def take_finished(self, replica: int) -> None:
        reader = self.finished_readers[replica]
        try:
            while reader.poll():
                self.dispatcher.finished(replica, reader.recv())
        except EOFError:  # the replica has ended, of which the supervisor hears
            self.poller.unregister(reader)
            del self.finished_readers[replica]

    def dispatch(self, message: Request) -> None:
        """A request to one replica, any other message to all of them."""
        if isinstance(message, GenerateRequest):
            replica = self.dispatcher.pick()
            self.lost.note(replica, message.rid)
            self.put(replica, message)
            return
        if isinstance(message, StopRequest):
            self.supervisor.expect_exit()
        for replica in range(len(self.queues)):
            if replica not in self.lost.replicas:
                self.put(replica, message)

    def put(self, replica: int, message: Request) -> None:
        self.board.to_replica(replica)
        self.queues[replica].put(message)
        count_pickled(message, self.trace)

    def take_out(self, replica: int) -> None:
        """It is no more. What its queue still holds is told to main by `lost`."""
        self.dispatcher.lose(replica)


def unlink_names(queue: multiprocessing.Queue) -> None:
    """A queue's semaphores have names in /dev/shm. They work on without them once the replica has opened them, and so
    nothing is left behind, however this process ends."""
    for lock in (queue._rlock, queue._wlock, queue._sem):
        name = lock._semlock.name
        _multiprocessing.sem_unlink(name)
        resource_tracker.unregister(name, "semaphore")
