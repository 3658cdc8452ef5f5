"""Broadcast controller (v0.2.0 to v0.3.2): rank 0 lives in the control process and broadcasts what arrived.

```
 D = 1                                        D > 1
 main ──┬── evo-detokenizer                   main ──┬── evo-detokenizer
        └── evo-controller TP0                       └── evo-controller-multi ──┬── evo-controller DP0 TP0
             └── evo-tp-server TP1                                              │    └── evo-tp-server DP0 TP1
                                                                                └── evo-controller DP1 TP0
 T + 2 processes                              D*T + 3 processes                      └── evo-tp-server DP1 TP1
```

The loop of the control process (`controller_single.py`), which is rank 0:
    drain the ZMQ socket, or the multiprocessing queue of its replica (blocking when nothing waits or runs)
    broadcast the list over gloo: length, then bytes; a single 0 when nothing arrived
    step: take the requests in, plan, run this rank's shard, sample
    send the token batch to the detokenizer
The loop of every other rank (`tp_server.py`): receive the broadcast, step, drop the output.

`--constants era`: what 0.2.0 had beside this, see `constants.py`.

One RPC hop is gone, and with it v0.1.5's pool of threads that waited for replies. With data parallelism
`ControllerMulti` hands each request to one ControllerSingle through a `multiprocessing.Queue`
(`controller_multi.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from common.args import EngineArgs
from common.channels import Endpoints
from common.process_tree import ProcessNode
from common.processes import Failure, Supervisor
from common.ranks import rank_env, rank_name
from common.supervision import exceptions, nothing
from evolution.broadcast_controller.constants import ERAS, LEVEL, in_force

__all__ = ["ERAS", "LEVEL", "SUPPORTS", "hears", "in_force", "launch", "process_tree"]

SUPPORTS = frozenset({"dp", "era", "rank0"})


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    """Start the control process: ControllerSingle (rank 0 inside), or ControllerMulti above one per replica."""
    if args.dp_size == 1:
        supervisor.start(
            rank_name("controller", args, 0, 0),
            "evolution.broadcast_controller.controller_single:run_controller_single_process",
            {"args": args, "endpoints": endpoints, "replica": 0, "queue": None, "finished": None},
            rank_env(args),
        )
        return
    supervisor.start(
        "evo-controller-multi",
        "evolution.broadcast_controller.controller_multi:run_controller_multi_process",
        {"args": args, "endpoints": endpoints},
    )


def hears(args: EngineArgs) -> Callable[[Failure], bool]:
    """With `--supervision era`: of its children's failures. ControllerMulti's were noticed by nobody."""
    return exceptions if args.dp_size == 1 else nothing


def process_tree(args: EngineArgs) -> list[ProcessNode]:
    if args.dp_size == 1:
        return [_replica(args, 0, f"PULL {in_force(args).transport} requests <- main")]
    channels = (f"PULL {in_force(args).transport} requests <- main", "pipe finished <- every ControllerSingle")
    replicas = [_replica(args, r, "mp.Queue requests <- ControllerMulti") for r in range(args.dp_size)]
    return [ProcessNode("evo-controller-multi", "ControllerMulti, dispatcher", channels, replicas)]


def _replica(args: EngineArgs, replica: int, channel: str) -> ProcessNode:
    others = ("gloo broadcast <- rank 0",)
    ranks = [
        ProcessNode(rank_name("tp-server", args, replica, rank), f"tp server, rank {rank}", others)
        for rank in range(1, args.tp_size)
    ]
    return ProcessNode(rank_name("controller", args, replica, 0), "ControllerSingle, rank 0", (channel,), ranks)
