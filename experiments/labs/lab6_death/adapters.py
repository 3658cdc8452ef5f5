"""What the tests call: thin functions that hand on to your file, and nothing else."""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from common.processes import Failure
from common.processes.board import Line

from . import solution


def main_hears(stage: str, dp_size: int, rank: int, how: str) -> bool:
    return solution.main_hears(stage, dp_size, rank, how)


def wait_for_death(children: dict[str, BaseProcess], timeout: float) -> tuple[str, int] | None:
    return solution.wait_for_death(children, timeout)


def start_with_ears(process_class: Any, target: Any, *args: Any) -> tuple[BaseProcess, Connection]:
    return solution.start_with_ears(process_class, target, *args)


def last_words(reader: Connection) -> list[Any]:
    return solution.last_words(reader)


def die_with_parent(parent: int) -> None:
    solution.die_with_parent(parent)


def launcher() -> Any:
    return solution.Launcher()


def who_hangs(earlier: list[Line], now: list[Line], outstanding: bool) -> str | None:
    return solution.who_hangs(earlier, now, outstanding)


def first_cause(children: dict[str, tuple[BaseProcess, Connection]], window: float) -> Failure:
    return solution.first_cause(children, window)


def end_all(children: list[BaseProcess]) -> None:
    solution.end_all(children)
