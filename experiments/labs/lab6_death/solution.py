"""Lab 6, who hears about a death: detect it, tell it, clean up after it. The file that you edit."""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from common.processes import Failure
from common.processes.board import Line

# ---------------------------------------------------------------------- 1  predict


def main_hears(stage: str, dp_size: int, rank: int, how: str) -> bool:
    """Task 6a. An engine with `--supervision era`, two ranks to a replica: is the main process told of what happens to
    this rank of replica 0, at the latest when the next request comes? Not if only the watchdog finds it.

    stage: "rpyc", "broadcast" or "peer". rank: 0 or 1.
    how: "raises in a turn" (an exception, while a request runs) or "is killed while idle" (SIGKILL).
    """
    raise NotImplementedError("lab6 task 6a")


# ---------------------------------------------------------------------- 2  detect


def wait_for_death(children: dict[str, BaseProcess], timeout: float) -> tuple[str, int] | None:
    """Task 6b. Block until one of these children, by name, has ended, and say which and with what exit code (-9: killed
    by signal 9). None if all live after `timeout` s. Asleep until then: it does not look again and again."""
    raise NotImplementedError("lab6 task 6b")


def start_with_ears(process_class: Any, target: Any, *args: Any) -> tuple[BaseProcess, Connection]:
    """Task 6c. Start process_class(target=target, args=(writer, *args)), `writer` being the writing end of a new pipe;
    returns the process and the reading end, which is at its end as soon as the child is dead, however it died."""
    raise NotImplementedError("lab6 task 6c")


def last_words(reader: Connection) -> list[Any]:
    """Task 6c. All that the child has sent and will send until it ends, in order. What it was sending when it died, and
    is not whole, is left out."""
    raise NotImplementedError("lab6 task 6c")


# ---------------------------------------------------------------------- 3  die together


def die_with_parent(parent: int) -> None:
    """Task 6d. Called by a child as its first act; `parent` is the pid of the process that started it, as that process
    gave it. From then on the child is killed (SIGKILL) when the parent ends; if the parent is gone already, the child
    ends here."""
    raise NotImplementedError("lab6 task 6d")


class Launcher:
    """Task 6e. Starts children that have called `die_with_parent`, from whatever thread asks. They must outlive that
    thread, and `start` returns when the child was started, or raises what starting it raised."""

    def __init__(self) -> None:
        raise NotImplementedError("lab6 task 6e")

    def start(self, process: BaseProcess) -> None:
        """process: not started yet."""
        raise NotImplementedError("lab6 task 6e")

    def close(self) -> None:
        """Nothing is started any more."""
        raise NotImplementedError("lab6 task 6e")


# ---------------------------------------------------------------------- 4  a hang is no death


def who_hangs(earlier: list[Line], now: list[Line], outstanding: bool) -> str | None:
    """Task 6f. Two looks at the board of an engine with one replica, some time apart; outstanding: a request was out
    all that time. The name of the process that holds the engine up, or None if it works, or has nothing to do.

    A process that is stopped; else the rank that is behind the other ranks; else rank 0.
    """
    raise NotImplementedError("lab6 task 6f")


# ---------------------------------------------------------------------- 5  tell


def first_cause(children: dict[str, tuple[BaseProcess, Connection]], window: float) -> Failure:
    """Task 6g. Each child, by name, with the pipe on which it may send one `Failure` before it ends. Block until there
    is a first sign that something went wrong; look for `window` s what else there is; return the cause of it all.

    A child that ended without a word is a Failure too, made here, with `was killed by SIGKILL` or `exited with code 3`
    as its cause and a severity as in `common.processes.failures`. Of several the cause is the one of the least
    severity, of those the first.
    """
    raise NotImplementedError("lab6 task 6g")


# ---------------------------------------------------------------------- 6  clean up


def end_all(children: list[BaseProcess]) -> None:
    """Task 6h. Kill these children and all below them, at any depth, and return when none of them is left: no zombie of
    ours, nobody that went on under another parent. Some ignore SIGTERM, and some start a child anew when one dies.
    Other processes are not touched."""
    raise NotImplementedError("lab6 task 6h")
