"""Entry points of real child processes for the process tests."""

from __future__ import annotations

import os
import signal
import time

from common.args import EngineArgs
from common.faults import in_process
from common.processes import ChildContext, PeerLost


def idle(context: ChildContext) -> None:
    context.ready({"answer": 42})
    time.sleep(60)


def report_environment(context: ChildContext) -> None:
    context.ready({"threads": os.environ.get("OMP_NUM_THREADS")})
    time.sleep(60)


def leave(context: ChildContext) -> None:
    context.ready()


def raise_before_ready(context: ChildContext) -> None:
    raise ValueError("no weights here")


def killed_before_ready(context: ChildContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_3(context: ChildContext) -> None:
    context.ready()
    os._exit(3)


def lose_peer_at(context: ChildContext, when: float) -> None:
    context.ready()
    time.sleep(max(0, when - time.monotonic()))
    raise PeerLost("the other rank is gone")


def die_at(context: ChildContext, when: float) -> None:
    context.ready()
    time.sleep(max(0, when - time.monotonic()))
    os.kill(os.getpid(), signal.SIGSEGV)


def hang_before_ready(context: ChildContext) -> None:
    time.sleep(60)


def fail_when_told(context: ChildContext, when: float | None = None) -> None:
    context.ready()
    time.sleep(60 if when is None else max(0, when - time.monotonic()))
    raise ValueError("as told")


def take_messages(context: ChildContext, args: EngineArgs, count: int) -> None:
    in_process(args, context)
    context.ready()
    for _ in range(count):
        context.slot.take(1)
    time.sleep(60)


def parent_of(context: ChildContext, target: str, kwargs: dict, count: int = 1) -> None:
    for index in range(count):
        context.supervisor.start(f"evo-grandchild {index}", target, kwargs)
    context.ready()
    time.sleep(60)


def start_and_print_pids(context: ChildContext) -> None:
    """A stand-in for a main process: has a child and a grandchild, and says so on stdout."""
    parent_of(context, "tests.helpers.children:idle", {})
