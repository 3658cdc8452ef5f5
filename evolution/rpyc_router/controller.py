"""Static data parallelism (#480): the controller process holds one thread per replica, each with its own rpyc client.

The dispatcher and all replica threads share one interpreter. A request goes from the controller's loop to a replica
thread through a `queue.Queue`; even with T = 1 the model lives in a process of its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

import zmq

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.dispatch import BacklogDispatcher, Dispatcher
from common.faults import in_process
from common.lost_replicas import LostReplicas
from common.messages import GenerateRequest, Request, StopRequest, TurnOutput
from common.processes import ChildContext, PeerLost, configure_logging, name_this_thread
from common.supervision import nothing
from common.tracing import make_trace
from evolution.rpyc_router.constants import in_force
from evolution.rpyc_router.model_client import ModelRpcClient, rpyc_addresses, start_model_processes


def run_controller_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "controller")
    controller = Controller(context, args, endpoints)
    context.ready()
    controller.loop()
    controller.trace.close()
    for worker in controller.workers:
        worker.join()


class Controller:
    def __init__(self, context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
        in_process(args, context)
        context.slot.is_dispatcher()
        self.slot, self.board = context.slot, context.board
        self.trace = make_trace(args.trace_dir, context.name, "dispatcher")
        self.supervisor = context.supervisor
        self.constants = in_force(args)
        self.blocks = args.idle == "block"
        self.recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request)
        if self.constants.dispatch == "backlog":
            self.dispatcher = BacklogDispatcher(args.load_balance_method, args.dp_size, self.backlogs)
        else:
            self.dispatcher = Dispatcher(args.load_balance_method, args.dp_size)
        self.lock = threading.Lock()  # the dispatcher's counts are written by every replica thread
        for replica in range(args.dp_size):
            start_model_processes(args, endpoints, self.supervisor, replica)
        ready = self.supervisor.wait_ready()
        self.workers = [
            DataParallelWorkerThread(
                context, args, endpoints, replica, rpyc_addresses(args, ready, replica), self.finished
            )
            for replica in range(args.dp_size)
        ]
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.connected.wait()
        if args.supervision == "era":
            context.supervisor.hear_only(nothing)  # a thread notices when its replica's connection breaks
        self.lost = LostReplicas(context, args, endpoints, self.take_out)

    def loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self.recv_from_tokenizer.socket, zmq.POLLIN)
        poller.register(self.lost.wake, zmq.POLLIN)
        while True:
            self.trace.turn()
            if self.blocks:
                self.trace.part("idle")
                poller.poll()
            self.trace.part("recv_requests")
            messages = self.recv_from_tokenizer.drain(wait=False)
            self.slot.take(len(messages))
            self.trace.part("send_output")
            for message in messages:
                self.dispatch(message)
                if isinstance(message, StopRequest):
                    return
            self.lost.look()
            self.trace.part("pacing_sleep")
            time.sleep(self.constants.sleep_dispatcher)

    def dispatch(self, message: Request) -> None:
        """A request to one replica, any other message to all of them."""
        if isinstance(message, GenerateRequest):
            with self.lock:
                replica = self.dispatcher.pick()
            self.lost.note(replica, message.rid)
            self.put(replica, message)
            return
        if isinstance(message, StopRequest):
            self.supervisor.expect_exit()
        for replica in range(len(self.workers)):
            if replica not in self.lost.replicas:
                self.put(replica, message)

    def put(self, replica: int, message: Request) -> None:
        self.board.to_replica(replica)
        self.workers[replica].request_queue.put(message)

    def take_out(self, replica: int) -> None:
        """It is no more: its thread waits for a message, or has learnt it from its connections."""
        with self.lock:
            self.dispatcher.lose(replica)
        self.workers[replica].request_queue.put(None)

    def backlogs(self) -> list[int]:
        return [worker.request_queue.qsize() for worker in self.workers]

    def finished(self, replica: int, count: int) -> None:
        with self.lock:
            self.dispatcher.finished(replica, count)


class ReplicaGone(Exception):
    """Ends the thread of a replica that was lost."""


class DataParallelWorkerThread(threading.Thread):
    """One replica: its own asyncio loop, rpyc client and sockets."""

    def __init__(
        self,
        context: ChildContext,
        args: EngineArgs,
        endpoints: Endpoints,
        replica: int,
        addresses: list[str | int],
        finished: Callable[[int, int], None],
    ) -> None:
        super().__init__(name=f"DP{replica}", daemon=True)
        self.context = context
        self.args = args
        self.endpoints = endpoints
        self.replica = replica
        self.addresses = addresses
        self.finished = finished
        self.request_queue: queue.Queue[Request | None] = queue.Queue()  # None: the replica is no more
        self.connected = threading.Event()

    def run(self) -> None:
        try:
            name_this_thread(self.name)
            asyncio.run(self.loop_for_forward())
        except ReplicaGone:
            return
        except BaseException as error:  # a thread's death would go unnoticed
            if self.args.on_replica_failure == "degrade" and isinstance(error, (PeerLost, EOFError, ConnectionError)):
                return  # the supervisor hears of the rank that ended, and takes the replica out
            self.context.fail(error)

    async def loop_for_forward(self) -> None:
        constants = in_force(self.args)
        trace = make_trace(self.args.trace_dir, self.context.name, self.name)
        model_client = ModelRpcClient(self.args, self.addresses, self.endpoints.secret, trace)
        send_to_detokenizer = Sender(self.context.zmq, self.endpoints.token_batches)
        send_to_main = Sender(self.context.zmq, self.endpoints.control)
        self.connected.set()
        output = TurnOutput(None, [], 0, busy=False, stop=False)
        while not output.stop:
            trace.turn()
            trace.part("recv_requests" if output.busy else "idle")
            messages = self.drain(wait=self.args.idle == "block" and not output.busy)
            output = await model_client.step(messages)
            trace.part("send_output")
            if output.tokens:
                send_to_detokenizer.send(output.tokens, trace)
            for message in output.control:
                send_to_main.send(message, trace)
            if output.finished:
                self.finished(self.replica, output.finished)
            trace.part("pacing_sleep")
            if output.tokens and constants.sleep_after_output:
                await asyncio.sleep(constants.sleep_after_output)
            if constants.sleep_every_turn:
                await asyncio.sleep(constants.sleep_every_turn)
        model_client.close()
        trace.close()

    def drain(self, wait: bool) -> list[Request]:
        """All that was dispatched to this replica; `wait` blocks this thread, whose loop has nothing else to do."""
        messages = [self.request_queue.get()] if wait else []
        while not self.request_queue.empty():
            messages.append(self.request_queue.get())
        if None in messages:
            raise ReplicaGone
        return messages
