"""Who hears of a failure: with `--supervision full` everybody, with `era` who did in the stage's own version.

With `full`, the default, the main process hears of any child's death or exception at any depth, and the watchdog finds
what hangs. With `era` each process that has children hears only what its version's did, once the engine has started:

rpyc, D = 1 (0.1.5)        A rank raises or is killed: the router's call fails, and nobody looks at the task that made
                           it. The router goes on receiving and forwards nothing more.
rpyc, D > 1 (0.1.17)       The same: the thread of that replica killed the main process.
broadcast, D = 1 (0.2.0)   Rank 0 raises: the main process is told. Rank k raises or is killed: nobody is told; when
                           idle the next broadcast breaks in rank 0, which raises; within a forward rank 0 waits.
broadcast, D > 1           Rank 0 raises: ControllerMulti goes with it, and nobody tells the main process.
peer, D = 1 (0.4.0)        Any rank raises: the main process is told. A rank is killed: when idle the next broadcast
                           breaks in the others, which raise; within a forward they wait (for 300 s, until 0.4.0's own
                           watchdog ended them).
peer, D > 1                Any rank raises: the controller dies of its SIGQUIT, and nobody tells the main process.

A router, controller or detokenizer that is killed is noticed by nobody in any of them. So requests hang, while the
engine says that it is well: `Engine.health()` is ok. `--era-hang-limit` bounds that, through the watchdog.

Three things are not as they were. Where 0.1.17 killed the main process by SIGKILL, that lives in the user's program
here, and the engine fails instead. Children die with their parents in every case: up to 0.4.1 a killed main process
left all of them running. And a failure while starting is always told.
"""

from __future__ import annotations

from common.processes import Failure


def nothing(failure: Failure) -> bool:
    return False


def exceptions(failure: Failure) -> bool:
    """What a child says itself before it ends; not what only its parent could notice."""
    return failure.severity in (1, 2)
