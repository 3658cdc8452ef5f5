"""Static data parallelism (#480): the controller process holds one thread per replica, each with its own rpyc client.

The dispatcher and all replica threads share one interpreter. A request goes from the controller's loop to a replica
thread through a `queue.Queue`; even with T = 1 the model lives in a process of its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading

import zmq.asyncio

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.dispatch import Dispatcher
from common.messages import GenerateRequest, Request, StopRequest, TurnOutput
from common.processes import ChildContext, configure_logging
from evolution.rpyc_router.model_client import ModelRpcClient, start_model_processes


def run_controller_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "controller")
    controller = Controller(context, args, endpoints)
    context.ready()
    asyncio.run(controller.loop())
    for worker in controller.workers:
        worker.join()


class Controller:
    def __init__(self, context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
        self.supervisor = context.supervisor
        self.recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request, zmq.asyncio.Socket)
        self.dispatcher = Dispatcher(args.load_balance_method, args.dp_size)
        self.lock = threading.Lock()  # the dispatcher's counts are written by every replica thread
        paths = [start_model_processes(args, endpoints, self.supervisor, replica) for replica in range(args.dp_size)]
        self.supervisor.wait_ready()
        self.workers = [
            DataParallelWorkerThread(context, args, endpoints, replica, paths[replica], self.finished)
            for replica in range(args.dp_size)
        ]
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.connected.wait()

    async def loop(self) -> None:
        while True:
            message = self.recv_from_tokenizer.decode(await self.recv_from_tokenizer.socket.recv())
            if isinstance(message, GenerateRequest):
                with self.lock:
                    replica = self.dispatcher.pick()
                self.workers[replica].request_queue.put(message)
                continue
            if isinstance(message, StopRequest):
                self.supervisor.expect_exit()
            for worker in self.workers:
                worker.request_queue.put(message)
            if isinstance(message, StopRequest):
                return

    def finished(self, replica: int, count: int) -> None:
        with self.lock:
            self.dispatcher.finished(replica, count)


class DataParallelWorkerThread(threading.Thread):
    """One replica: its own asyncio loop, rpyc client and sockets."""

    def __init__(
        self, context: ChildContext, args: EngineArgs, endpoints: Endpoints, replica: int, paths: list[str], finished
    ) -> None:
        super().__init__(name=f"DP{replica}", daemon=True)
        self.context = context
        self.args = args
        self.endpoints = endpoints
        self.replica = replica
        self.paths = paths
        self.finished = finished
        self.request_queue: queue.Queue[Request] = queue.Queue()
        self.connected = threading.Event()

    def run(self) -> None:
        try:
            asyncio.run(self.loop_for_forward())
        except BaseException as error:  # a thread's death would go unnoticed
            self.context.fail(error)

    async def loop_for_forward(self) -> None:
        model_client = ModelRpcClient(self.args, self.paths)
        send_to_detokenizer = Sender(self.context.zmq, self.endpoints.token_batches)
        send_to_main = Sender(self.context.zmq, self.endpoints.control)
        self.connected.set()
        output = TurnOutput(None, [], 0, busy=False, stop=False)
        while not output.stop:
            messages = self.drain(wait=not output.busy)
            output = await model_client.step(messages)
            if output.tokens:
                send_to_detokenizer.send(output.tokens)
            for message in output.control:
                send_to_main.send(message)
            if output.finished:
                self.finished(self.replica, output.finished)
        model_client.close()

    def drain(self, wait: bool) -> list[Request]:
        """All that was dispatched to this replica; `wait` blocks this thread, whose loop has nothing else to do."""
        messages = [self.request_queue.get()] if wait else []
        while not self.request_queue.empty():
            messages.append(self.request_queue.get())
        return messages
