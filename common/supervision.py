"""Who hears of a failure: with `--supervision full` everybody, with `era` who did in the stage's own version.

With `full`, the default, the main process hears of any child's death or exception at any depth, and the watchdog finds
what hangs. With `era` each process that has children hears only what its version's did, once the engine has started:

| stage, version | a rank raises an exception | a rank is killed (SIGKILL, abort) |
|---|---|---|
| rpyc, 0.1.5, D = 1 | nobody looks: the router goes on receiving and forwards nothing more, requests wait | the same |
| rpyc, 0.1.17, D > 1 | the thread of its replica lost the connection and killed the main process | the same |
| broadcast, 0.2.0, D = 1 | rank 0: the main process is told. Rank k: nobody is; the next broadcast breaks in rank 0,
    which then raises; in the middle of a forward rank 0 waits | idle: as rank k's exception. Else rank 0 waits |
| broadcast, D > 1 | rank 0 takes ControllerMulti with it, and nobody tells the main process | the same, once noticed |
| peer, 0.4.0, D = 1 | any rank: the main process is told | idle: the next broadcast breaks in the others, which raise. In
    the middle of a forward they wait; 0.4.0's own watchdog ended that after 300 s |
| peer, D > 1 | the controller dies with it (of SIGQUIT), and nobody tells the main process | the same, once noticed |

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
