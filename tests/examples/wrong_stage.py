"""A stage that is wrong on purpose: it loses the last request of every list, and any abort. The suite must say so.

pytest tests/conformance --stage tests.examples.wrong_stage:launch
"""

from __future__ import annotations

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.messages import AbortRequest, GenerateRequest, Request
from common.processes import ChildContext, Supervisor
from common.ranks import rank_env, rank_name
from common.worker import Worker


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    kwargs = {"args": args, "endpoints": endpoints}
    supervisor.start(rank_name("wrong", args, 0, 0), f"{__name__}:run", kwargs, rank_env(args))


def run(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    requests = Receiver(context.zmq, endpoints.requests, Request)
    tokens = Sender(context.zmq, endpoints.token_batches)
    control = Sender(context.zmq, endpoints.control)
    worker = Worker(args, 0, 0, None)
    context.ready(worker.info)
    stop = False
    while not stop:
        messages = [m for m in requests.drain(wait=not worker.busy) if not isinstance(m, AbortRequest)]
        generate = [m for m in messages if isinstance(m, GenerateRequest)]
        if len(generate) > 1:
            messages.remove(generate[-1])
        output = worker.step(messages)
        if output.tokens:
            tokens.send(output.tokens)
        for message in output.control:
            control.send(message)
        stop = output.stop
