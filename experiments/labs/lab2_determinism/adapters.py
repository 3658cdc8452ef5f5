"""What the tests know of the files that you edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.messages import Request

from . import repairs, solution, suspects


def turn_log() -> Any:
    return solution.TurnLog()


def first_divergence(ask: Callable[[int, int], int], ranks: int, turns: int) -> tuple[int, list[int]] | None:
    found = solution.first_divergence(ask, ranks, turns)
    return None if found is None else (found.turn, found.ranks)


def late(turns: list[list[Request]], turn: int) -> list[list[Request]]:
    return solution.late(turns, turn)


def order_of(module: str, name: str, *arguments: Any) -> Any:
    """module: "repairs", yours; or "suspects"."""
    return getattr(repairs if module == "repairs" else suspects, name)(*arguments)
