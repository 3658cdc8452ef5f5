"""Lab 0: what a stage starts, what it really started, and what that costs. The handout is README.md."""

from __future__ import annotations

from dataclasses import dataclass


def process_count(stage: str, tp_size: int, dp_size: int) -> int:
    """Task 0a. How many processes the engine has, the main process among them.

    stage: rpyc, broadcast or peer. ValueError for any other.
    """
    raise NotImplementedError("lab0 task 0a: count the processes of a stage")


def parents(stage: str, tp_size: int, dp_size: int) -> dict[str, str]:
    """Task 0b. Each process's name with the name of the one that starts it; `main`, which nobody starts, with "".

    Names are those of `python -m evolution processes`: `evo-peer TP1`, with replicas `evo-peer DP0 TP1`.
    """
    raise NotImplementedError("lab0 task 0b: say who starts whom")


@dataclass(frozen=True)
class Seen:
    """A process as the operating system shows it. parent: its pid."""

    name: str
    parent: int


def processes_below(pid: int) -> dict[int, Seen]:
    """Task 0c. The engine's processes below `pid`, at whatever depth, by their pids: those whose name begins with
    `evo-`. Names are whole, not cut.

    From /proc alone. A process may end while you look: then it is left out.
    """
    raise NotImplementedError("lab0 task 0c: find the processes of a running engine")


def messages_of_a_turn(stage: str, tp_size: int, scheduling: str) -> int:
    """Task 0d. How many messages the whole engine sends in one decode turn of one request: one replica, no news from
    main, `--constants level` (the default).

    scheduling: replicated or rank0. What a message is, and how a broadcast is counted: `common/tracing.py`, top.
    """
    raise NotImplementedError("lab0 task 0d: count the messages of a decode turn")


def cpu_seconds(pid: int) -> float:
    """Task 0e. CPU time of a process since it began, in s, user and system of all of its threads; from /proc.

    ProcessLookupError when there is no such process.
    """
    raise NotImplementedError("lab0 task 0e: read the CPU time of a process")
