"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from collections.abc import Callable

from .reference_solution import *


def first_divergence(ask: Callable[[int, int], int], ranks: int, turns: int) -> Divergence | None:
    others = [rank for rank in range(1, ranks) if ask(rank, turns) != ask(0, turns)]
    return Divergence(turns, others) if others else None
