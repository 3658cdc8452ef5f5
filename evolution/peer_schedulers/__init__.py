"""Peer schedulers (v0.3.3 to today): one scheduler process per rank, all alike; a controller only with replicas.

```
 D = 1                                        D > 1
 main ──┬── evo-detokenizer                   main ──┬── evo-detokenizer
        ├── evo-peer TP0                             └── evo-dp-controller ──┬── evo-peer DP0 TP0
        └── evo-peer TP1                                                     ├── evo-peer DP0 TP1
                                                                             ├── evo-peer DP1 TP0
 T + 2 processes                              D*T + 3 processes              └── evo-peer DP1 TP1
```

The loop of every rank (`scheduler.py`):
    rank 0 drains its ZMQ socket (blocking when nothing waits or runs), the others wait in the broadcast
    rank 0 broadcasts the list over gloo: length, then bytes; a single 0 when nothing arrived
    every rank takes the requests in, plans the same batch, runs its shard, samples the same ids
    rank 0 sends the token batch to the detokenizer; the other ranks drop theirs

`--overlap`: the loop that plans while the forward runs, see `overlap.py`.
`--constants era`: what 0.4.0 had beside this, see `constants.py`.

With data parallelism a request makes one more hop: main -> controller -> rank 0 of one replica, all by ZMQ
(`data_parallel_controller.py`). Control messages go to every replica.
"""

from __future__ import annotations

from collections.abc import Callable

from common.args import EngineArgs
from common.channels import Endpoints
from common.process_tree import ProcessNode
from common.processes import Failure, Supervisor
from common.ranks import rank_name
from common.supervision import exceptions, nothing
from evolution.peer_schedulers.constants import ERAS, LEVEL, check, in_force
from evolution.peer_schedulers.replica import start_replica

__all__ = ["ERAS", "LEVEL", "SUPPORTS", "check", "hears", "in_force", "launch", "process_tree"]

SUPPORTS = frozenset({"dp", "era", "overlap", "rank0"})


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    """Start the schedulers as children of this process, or the controller that starts them."""
    if args.dp_size == 1:
        start_replica(args, endpoints, supervisor, replica=0, requests=endpoints.requests, finished=None)
        return
    supervisor.start(
        "evo-dp-controller",
        "evolution.peer_schedulers.data_parallel_controller:run_data_parallel_controller_process",
        {"args": args, "endpoints": endpoints},
    )


def hears(args: EngineArgs) -> Callable[[Failure], bool]:
    """With `--supervision era`: of its children's failures. The controller died of a rank's SIGQUIT without a word."""
    return exceptions if args.dp_size == 1 else nothing


def process_tree(args: EngineArgs) -> list[ProcessNode]:
    source = "main" if args.dp_size == 1 else "DP controller"

    def ranks(replica: int) -> list[ProcessNode]:
        first, others = (f"PULL ipc requests <- {source}",), ("gloo broadcast <- rank 0",)
        return [
            ProcessNode(rank_name("peer", args, replica, rank), f"scheduler, rank {rank}", others if rank else first)
            for rank in range(args.tp_size)
        ]

    if args.dp_size == 1:
        return ranks(0)
    channels = ("PULL ipc requests <- main", "PULL ipc finished <- every rank 0")
    children = [node for replica in range(args.dp_size) for node in ranks(replica)]
    return [ProcessNode("evo-dp-controller", "dispatcher", channels, children)]
