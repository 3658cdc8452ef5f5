"""A stage of one's own in few lines: one process per rank, rank 0 hands the others its list through pipes.

pytest tests/conformance --stage tests.examples.pipe_stage:launch
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import msgspec

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.messages import Request
from common.parallel.group import GroupSpec
from common.processes import ChildContext, Supervisor
from common.ranks import rank_env, rank_name, replica_group
from common.worker import Worker

decode = msgspec.msgpack.Decoder(list[Request]).decode


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    group = replica_group(args, endpoints.folder, 0)
    pipes = [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(1, args.tp_size)]
    readers, writers = [reader for reader, _ in pipes], [writer for _, writer in pipes]
    for rank in range(args.tp_size):
        shared = {"args": args, "rank": rank, "group": group}
        if rank == 0:
            kwargs = {"endpoints": endpoints, "writers": writers, **shared}
            supervisor.start(rank_name("pipe", args, 0, 0), f"{__name__}:run_first", kwargs, rank_env(args))
        else:
            kwargs = {"reader": readers[rank - 1], **shared}
            supervisor.start(rank_name("pipe", args, 0, rank), f"{__name__}:run_other", kwargs, rank_env(args))
    for pipe in (*readers, *writers):
        pipe.close()


def run_first(
    context: ChildContext,
    args: EngineArgs,
    endpoints: Endpoints,
    rank: int,
    group: GroupSpec,
    writers: list[Connection],
) -> None:
    requests = Receiver(context.zmq, endpoints.requests, Request)
    tokens = Sender(context.zmq, endpoints.token_batches)
    control = Sender(context.zmq, endpoints.control)
    worker = Worker(args, 0, rank, group, slot=context.slot)
    context.ready(worker.info)
    stop = False
    while not stop:
        messages = requests.drain(wait=not worker.busy)
        for writer in writers:
            writer.send_bytes(msgspec.msgpack.encode(messages))
        output = worker.step(messages)
        if output.tokens:
            tokens.send(output.tokens)
        for message in output.control:
            control.send(message)
        stop = output.stop
    worker.close()


def run_other(context: ChildContext, args: EngineArgs, rank: int, group: GroupSpec, reader: Connection) -> None:
    worker = Worker(args, 0, rank, group, slot=context.slot)
    context.ready(worker.info)
    while not worker.step(decode(reader.recv_bytes())).stop:
        pass
    worker.close()
