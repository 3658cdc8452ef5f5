"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from collections.abc import Callable

from . import reference_solution as reference
from .reference_solution import *


def first_divergence(ask: Callable[[int, int], int], ranks: int, turns: int) -> Divergence | None:
    found = reference.first_divergence(ask, ranks, turns)
    return found and Divergence(found.turn - 1, found.ranks)
