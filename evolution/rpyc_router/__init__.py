"""rpyc router (v0.1.5; with replicas v0.1.17): a router process drives one model process per rank by remote calls.

```
 D = 1, T > 1                     D = 1, T = 1                     D > 1 (a thread with its own client per replica)
 main ──┬── evo-detokenizer       main ──┬── evo-detokenizer       main ──┬── evo-detokenizer
        └── evo-router                   └── evo-router TP0               └── evo-router ──┬── evo-rpyc DP0 TP0
             ├── evo-rpyc TP0                 (the model sits                 [thread DP0] ├── evo-rpyc DP0 TP1
             └── evo-rpyc TP1                  in the router)                 [thread DP1] ├── evo-rpyc DP1 TP0
 T + 3 processes                  3 processes                      D*T + 3 processes       └── evo-rpyc DP1 TP1
```

The router (`router.py`) is one asyncio loop with two tasks:
    receive: append every ZMQ message to recv_reqs
    forward: swap recv_reqs out; call step on every rank (`model_client.py` calls `model_server.py`);
             wait for all; take rank 0's result;
             send the token batch to the detokenizer; with nothing waiting or running, wait for a message: no call

`--scheduling rank0` (the default here): the router calls plan(requests) on rank 0, then execute(plan) on every rank.
`--scheduling replicated` (what v0.1.5 really did): it calls step(requests) on every rank, and all of them plan.

rpyc is used well here: payloads by value (bytes), a unix socket, no zlib per frame. v0.1.5 passed references that
each rank pulled back as pickles, over TCP with Nagle's algorithm on, every frame above 3,000 bytes compressed
(`transport.py` has both). `--constants era` brings that back, with the sleeps and the bursts, see `constants.py`.
With T = 1 and D = 1 the router holds the worker itself (`local_router.py`): receiving happens between turns.
"""

from __future__ import annotations

from collections.abc import Callable

from common.args import EngineArgs
from common.channels import Endpoints
from common.process_tree import ProcessNode
from common.processes import Failure, Supervisor
from common.ranks import memory_env, rank_env, rank_name
from common.supervision import exceptions, nothing
from evolution.rpyc_router.constants import ERAS, LEVEL, in_force

__all__ = ["ERAS", "LEVEL", "SUPPORTS", "hears", "in_force", "launch", "notes", "process_tree"]

SUPPORTS = frozenset({"dp", "era", "rank0"})


def launch(args: EngineArgs, endpoints: Endpoints, supervisor: Supervisor) -> None:
    """Start the router; it starts the model processes, if there are any."""
    kwargs = {"args": args, "endpoints": endpoints}
    if args.dp_size > 1:
        supervisor.start("evo-router", "evolution.rpyc_router.controller:run_controller_process", kwargs, memory_env())
    elif args.tp_size > 1:
        supervisor.start("evo-router", "evolution.rpyc_router.router:run_router_process", kwargs, memory_env())
    else:
        target = "evolution.rpyc_router.local_router:run_local_router_process"
        supervisor.start(rank_name("router", args, 0, 0), target, kwargs, rank_env(args))


def hears(args: EngineArgs) -> Callable[[Failure], bool]:
    """With `--supervision era`: of the router's failures. 0.1.17's controller killed the main process."""
    return nothing if args.dp_size == 1 else exceptions


def notes(args: EngineArgs) -> list[str]:
    """What a reader of this stage's figures must know."""
    if args.tp_size == 1 and args.dp_size == 1:
        return ["rpyc at TP 1, DP 1: the model sits in the router, which receives requests between turns."]
    return []


def process_tree(args: EngineArgs) -> list[ProcessNode]:
    channels = (f"PULL {in_force(args).transport} requests <- main",)
    if args.tp_size == 1 and args.dp_size == 1:
        return [ProcessNode(rank_name("router", args, 0, 0), "router, rank 0", channels)]
    socket = "unix socket" if in_force(args).calls == "by value" else "TCP"
    ranks = [
        ProcessNode(rank_name("rpyc", args, replica, rank), f"model, rank {rank}", (f"rpyc {socket} <- router",))
        for replica in range(args.dp_size)
        for rank in range(args.tp_size)
    ]
    holds = "router" if args.dp_size == 1 else f"controller, {args.dp_size} replica threads"
    return [ProcessNode("evo-router", holds, channels, ranks)]
