"""All that the tests know of the solution."""

from __future__ import annotations

from . import solution


def process_count(stage: str, tp_size: int, dp_size: int) -> int:
    return solution.process_count(stage, tp_size, dp_size)


def parents(stage: str, tp_size: int, dp_size: int) -> dict[str, str]:
    return solution.parents(stage, tp_size, dp_size)


def processes_below(pid: int) -> dict[int, tuple[str, int]]:
    """Name and parent's pid, by pid."""
    return {pid: (seen.name, seen.parent) for pid, seen in solution.processes_below(pid).items()}


def messages_of_a_turn(stage: str, tp_size: int, scheduling: str) -> int:
    return solution.messages_of_a_turn(stage, tp_size, scheduling)


def cpu_seconds(pid: int) -> float:
    return solution.cpu_seconds(pid)
