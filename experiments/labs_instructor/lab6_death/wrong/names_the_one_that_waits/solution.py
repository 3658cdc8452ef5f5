"""Wrong in 6f: of the ranks it names the one that is ahead."""

from __future__ import annotations

from typing import Any

from common.processes.board import RANK_PART, Line

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def who_hangs(earlier: list[Line], now: list[Line], outstanding: bool) -> str | None:
    if not outstanding or [line.steps for line in earlier] != [line.steps for line in now]:
        return None
    return max((line for line in now if line.part == RANK_PART), key=lambda line: line.steps).name
