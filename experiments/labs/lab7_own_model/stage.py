"""The stage: the processes that it starts, and what each of them does. Given; a model with other processes has a
`launch` of its own in solution.py, and a `run_rank`.

```
 main ──┬── evo-detokenizer
        ├── evo-own TP0       gets the requests, sends the tokens
        └── evo-own TP1 ..
```

    python -m evolution run --stage PACKAGE.stage:launch --model-path tiny --tp-size 2
"""

from __future__ import annotations

from typing import Any

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.messages import Request, TurnOutput
from common.parallel.group import GroupSpec
from common.process_tree import ProcessNode
from common.processes import ChildContext, Supervisor, configure_logging
from common.ranks import rank_env, rank_label, rank_name, replica_group
from common.tracing import make_trace

from . import solution


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    """Start a process for each rank, as children of the main process."""
    group = replica_group(args, endpoints.folder, 0)
    shared = solution.share(args.tp_size, endpoints.folder)
    for rank in range(args.tp_size):
        settings = {"args": args, "endpoints": endpoints, "rank": rank, "group": group, "shared": shared}
        supervisor.start(rank_name("own", args, 0, rank), f"{__name__}:run_rank", settings, rank_env(args))


def run_rank(
    context: ChildContext, args: EngineArgs, endpoints: Endpoints, rank: int, group: GroupSpec, shared: Any
) -> None:
    from common.worker import Worker  # imports torch, which the process that launches has no use for

    configure_logging(args.log_level, rank_label(args, 0, rank))
    trace = make_trace(args.trace_dir, context.name)
    requests = Receiver(context.zmq, endpoints.requests, Request) if rank == 0 else None
    tokens = Sender(context.zmq, endpoints.token_batches) if rank == 0 else None
    control = Sender(context.zmq, endpoints.control) if rank == 0 else None
    worker = Worker(args, 0, rank, group, trace=trace, slot=context.slot)
    context.mark("loaded")
    inlet = solution.Inlet(context, shared, rank, args.tp_size, requests, trace)
    context.ready(worker.info)

    def send(output: TurnOutput) -> None:
        if output.tokens:
            tokens.send(output.tokens, trace)
        for message in output.control:
            control.send(message, trace)

    solution.loop(inlet, worker, send if rank == 0 else None, trace)
    inlet.close()
    worker.close()
    trace.close()


def process_tree(args: EngineArgs) -> list[ProcessNode]:
    """What `processes` shows before anything was started."""
    channels = ("PULL ipc requests <- main",), ("my own <- rank 0",)
    return [
        ProcessNode(rank_name("own", args, 0, rank), f"rank {rank}", channels[min(rank, 1)])
        for rank in range(args.tp_size)
    ]
