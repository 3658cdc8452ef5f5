"""ControllerMulti: starts one ControllerSingle per replica and hands each request to one of them.

Requests travel through a `multiprocessing.Queue` per replica: pickled by a feeder thread into a pipe. 0.2.0 measured
a replica's load by that queue's length, which is only what its loop has not yet drained (so with era constants); else
every replica reports what it finished through a pipe, so that outstanding work can be counted.
"""

from __future__ import annotations

import _multiprocessing
import multiprocessing
from multiprocessing import resource_tracker

import zmq

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, count_pickled
from common.dispatch import BacklogDispatcher, Dispatcher
from common.messages import GenerateRequest, Request, StopRequest
from common.processes import ChildContext, configure_logging
from common.ranks import rank_env, rank_name
from common.tracing import make_trace
from evolution.broadcast_controller.constants import in_force


def run_controller_multi_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "controller")
    controller = ControllerMulti(context, args, endpoints)
    context.supervisor.wait_ready()
    for queue in controller.queues:
        unlink_names(queue)
    context.ready()
    controller.loop()
    controller.trace.close()
    context.leave()  # while the queues live: at their end they would look for the names that are gone


class ControllerMulti:
    def __init__(self, context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
        self.trace = make_trace(args.trace_dir, context.name)
        self.supervisor = context.supervisor
        self.recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request)
        self.queues = []
        self.finished_readers = []
        spawn = multiprocessing.get_context("spawn")
        for replica in range(args.dp_size):
            queue = spawn.Queue()
            reader, writer = spawn.Pipe(duplex=False)
            self.supervisor.start(
                rank_name("controller", args, replica, 0),
                "evolution.broadcast_controller.controller_single:run_controller_single_process",
                {"args": args, "endpoints": endpoints, "replica": replica, "queue": queue, "finished": writer},
                rank_env(args),
            )
            writer.close()
            self.queues.append(queue)
            self.finished_readers.append(reader)
        if in_force(args).dispatch == "backlog":
            self.dispatcher = BacklogDispatcher(args.load_balance_method, args.dp_size, self.backlogs)
        else:
            self.dispatcher = Dispatcher(args.load_balance_method, args.dp_size)
        self.poll_timeout = None if args.idle == "block" else 0

    def backlogs(self) -> list[int]:
        return [queue.qsize() for queue in self.queues]

    def loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self.recv_from_tokenizer.socket, zmq.POLLIN)
        for reader in self.finished_readers:
            poller.register(reader, zmq.POLLIN)
        while True:
            self.trace.turn()
            self.trace.part("idle")
            poller.poll(self.poll_timeout)
            self.trace.part("recv_requests")
            for replica, reader in enumerate(self.finished_readers):
                while reader.poll():
                    self.dispatcher.finished(replica, reader.recv())
            messages = self.recv_from_tokenizer.drain(wait=False)
            self.trace.part("send_output")
            for message in messages:
                if isinstance(message, GenerateRequest):
                    self.put(self.queues[self.dispatcher.pick()], message)
                    continue
                if isinstance(message, StopRequest):
                    self.supervisor.expect_exit()
                for queue in self.queues:
                    self.put(queue, message)
                if isinstance(message, StopRequest):
                    return

    def put(self, queue: multiprocessing.Queue, message: Request) -> None:
        queue.put(message)
        count_pickled(message, self.trace)


def unlink_names(queue: multiprocessing.Queue) -> None:
    """A queue's semaphores have names in /dev/shm. They work on without them once the replica has opened them, and so
    nothing is left behind, however this process ends."""
    for lock in (queue._rlock, queue._wlock, queue._sem):
        name = lock._semlock.name
        _multiprocessing.sem_unlink(name)
        resource_tracker.unregister(name, "semaphore")
