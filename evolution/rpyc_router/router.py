"""The router process of one replica of several ranks (D = 1, T > 1): two tasks on one asyncio loop."""

from __future__ import annotations

import asyncio

import zmq.asyncio

from common.args import EngineArgs
from common.channels import FORGED, Endpoints, Receiver, Sender
from common.faults import in_process
from common.messages import Request, TurnOutput
from common.processes import ChildContext, configure_logging
from common.supervision import nothing
from common.tracing import make_trace
from evolution.rpyc_router.constants import in_force
from evolution.rpyc_router.model_client import ModelRpcClient, rpyc_addresses, start_model_processes


def run_router_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "router")
    in_process(args, context)
    asyncio.run(run_router(context, args, endpoints))


async def run_router(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    start_model_processes(args, endpoints, context.supervisor, replica=0)  # first: they take longest
    router = Router(context, args, endpoints)
    ready = context.supervisor.wait_ready()
    addresses = rpyc_addresses(args, ready, replica=0)
    router.model_client = ModelRpcClient(args, addresses, endpoints.secret, router.trace)
    context.ready()
    if args.supervision == "era":
        context.supervisor.hear_only(nothing)

    receiving = asyncio.create_task(router.loop_for_recv_requests())
    forwarding = asyncio.create_task(router.loop_for_forward())
    done, _ = await asyncio.wait({receiving, forwarding}, return_when=asyncio.FIRST_COMPLETED)
    if args.supervision == "era" and any(task.exception() for task in done):
        await asyncio.Future()  # 0.1.5 looked at neither task: the router stays, and forwards nothing
    for task in done:
        task.result()  # raises what ended it
    receiving.cancel()
    context.supervisor.expect_exit()
    router.model_client.close()
    router.trace.close()


class Router:
    def __init__(self, context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
        self.trace = make_trace(args.trace_dir, context.name)
        self.slot = context.slot
        self.constants = in_force(args)
        self.blocks = args.idle == "block"
        self.model_client: ModelRpcClient
        self.recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request, zmq.asyncio.Socket)
        self.send_to_detokenizer = Sender(context.zmq, endpoints.token_batches)
        self.send_to_main = Sender(context.zmq, endpoints.control)
        self.recv_reqs: list[Request] = []
        self.arrived = asyncio.Event()

    async def loop_for_recv_requests(self) -> None:
        while True:
            frame = await self.recv_from_tokenizer.socket.recv(copy=False)
            self.trace.part("recv_requests")
            message = self.recv_from_tokenizer.decode(frame.buffer)
            if message is not FORGED:
                self.recv_reqs.append(message)
            self.slot.take(1)
            self.trace.back()  # to what the other task is at
            self.arrived.set()

    async def loop_for_forward(self) -> None:
        busy = False
        while True:
            self.trace.turn()
            if self.blocks and not busy and not self.recv_reqs:
                self.trace.part("idle")
                self.arrived.clear()
                await self.arrived.wait()
            next_step_input, self.recv_reqs = self.recv_reqs, []
            output = await self.model_client.step(next_step_input)
            self.trace.part("send_output")
            self.send(output)
            if output.stop:
                return
            busy = output.busy
            self.trace.part("pacing_sleep")
            if output.tokens and self.constants.sleep_after_output:
                await asyncio.sleep(self.constants.sleep_after_output)
            if not self.constants.sleep_every_turn:
                # No sleep, but a step of the loop, in which the other task can receive.
                self.trace.part("recv_requests")
            await asyncio.sleep(self.constants.sleep_every_turn)

    def send(self, output: TurnOutput) -> None:
        if output.tokens:
            self.send_to_detokenizer.send(output.tokens, self.trace)
        for message in output.control:
            self.send_to_main.send(message, self.trace)
