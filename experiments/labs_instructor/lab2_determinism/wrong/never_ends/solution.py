"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from collections.abc import Callable

from . import reference_solution as reference
from .reference_solution import *


def first_divergence(ask: Callable[[int, int], int], ranks: int, turns: int) -> Divergence | None:
    if reference.first_divergence(ask, ranks, turns) is None:
        return None
    agreed, differing = 0, turns
    while agreed < differing:
        middle = (agreed + differing) // 2
        if any(ask(rank, max(middle, 1)) != ask(0, max(middle, 1)) for rank in range(1, ranks)):
            differing = middle
        else:
            agreed = middle
    return Divergence(differing, [rank for rank in range(1, ranks) if ask(rank, differing) != ask(0, differing)])
