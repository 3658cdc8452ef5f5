"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from . import reference_solution as reference
from .reference_solution import *


def cost(lengths: list[int], ranks: int) -> tuple[int, int]:
    return reference.cost(lengths, ranks=2)
