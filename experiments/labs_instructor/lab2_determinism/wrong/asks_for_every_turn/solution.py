"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from collections.abc import Callable

from .reference_solution import *


def first_divergence(ask: Callable[[int, int], int], ranks: int, turns: int) -> Divergence | None:
    for turn in range(1, turns + 1):
        others = [rank for rank in range(1, ranks) if ask(rank, turn) != ask(0, turn)]
        if others:
            return Divergence(turn, others)
    return None
