"""Spawn, name, ready handshake, death watch, stop: the only place that starts or ends a process.

```
 main ── Supervisor ──┬── evo-detokenizer
                      └── evo-router ── Supervisor ──┬── evo-rpyc TP0
                                                     └── evo-rpyc TP1
```

Principles
1. Every process that has children holds one `Supervisor`: one thread that starts the children and waits on their
   sentinels and status pipes. All starts go through it, since PR_SET_PDEATHSIG follows the *thread* that started
   the child, not the process.
2. Children die with their parent, however it ends: PDEATHSIG, a check of getppid after setting it (the parent may
   have died in between), and a thread that waits for the parent's sentinel.
3. A child that ends unasked is a `Failure`. It travels up, from pipe to pipe, to the main process; each level kills
   its own children and leaves. The first cause is named, not the peers that lost a connection because of it.
4. A child says `ready` once, when it can serve; a parent says so only after its own children have. The report
   carries the pids, so the main process knows the whole tree as it really runs.
5. A process that neither ends nor works is found by what it says on the board (`board.py`), which all of them share.
6. Where a replica may be lost on its own (`Supervisor.tolerate`), a failure in it ends that replica and no more.
"""

from common.processes.board import Board, Slot
from common.processes.child import ChildContext, configure_logging, open_standard_streams, refuse_while_spawning
from common.processes.failures import Failure, PeerLost, ProcessFailed, ReadyReport
from common.processes.supervisor import Supervisor
from common.processes.thread_names import name_this_thread

__all__ = [
    "Board",
    "ChildContext",
    "Failure",
    "PeerLost",
    "ProcessFailed",
    "ReadyReport",
    "Slot",
    "Supervisor",
    "configure_logging",
    "name_this_thread",
    "open_standard_streams",
    "refuse_while_spawning",
]
