"""T = 1 and D = 1: the model sits in the router process, as it did in v0.1.5. No rpyc, no further process.

A step occupies the router's only thread, so requests are received between two turns and never during one (in v0.1.5
during the sleeps between two turns).
"""

from __future__ import annotations

import time

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.messages import Request
from common.processes import ChildContext, configure_logging
from common.tracing import make_trace
from common.worker import Worker
from evolution.rpyc_router.constants import in_force


def run_local_router_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    configure_logging(args.log_level, "router")
    recv_from_tokenizer = Receiver(context.zmq, endpoints.requests, Request)
    send_to_detokenizer = Sender(context.zmq, endpoints.token_batches)
    send_to_main = Sender(context.zmq, endpoints.control)
    constants = in_force(args)
    trace = make_trace(args.trace_dir, context.name)
    worker = Worker(args, replica=0, rank=0, group=None, rules=constants.rules, trace=trace, slot=context.slot)
    context.ready(worker.info)

    stop = False
    while not stop:
        trace.turn()
        if args.idle == "block" and not worker.busy:
            trace.part("idle")
            recv_from_tokenizer.wait()
        trace.part("recv_requests")
        messages = recv_from_tokenizer.drain(wait=False)
        output = worker.step(messages)
        if output.tokens:
            send_to_detokenizer.send(output.tokens, trace)
        for message in output.control:
            send_to_main.send(message, trace)
        trace.part("pacing_sleep")
        if output.tokens and constants.sleep_after_output:
            time.sleep(constants.sleep_after_output)
        if constants.sleep_every_turn:
            time.sleep(constants.sleep_every_turn)
        stop = output.stop
    trace.close()
