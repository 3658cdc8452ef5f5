"""T = 1 and D = 1: the model sits in the router process, as it did in v0.1.5. No rpyc, no further process.

A step occupies the router's only thread, so requests are received between two turns and never during one.
"""

from __future__ import annotations

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.messages import Request
from common.processes import ChildContext, configure_logging
from common.worker import Worker


def run_local_router_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "router")
    recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request)
    send_to_detokenizer = Sender(context.zmq, endpoints.token_batches)
    send_to_main = Sender(context.zmq, endpoints.control)
    worker = Worker(args, replica=0, rank=0, group=None)
    context.ready(worker.info)

    stop = False
    while not stop:
        messages = recv_from_tokenizer.drain(wait=not worker.busy)
        output = worker.step(messages)
        if output.tokens:
            send_to_detokenizer.send(output.tokens)
        for message in output.control:
            send_to_main.send(message)
        stop = output.stop
