"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.messages import Request

from .reference_solution import *


def late(turns: list[list[Request]], turn: int) -> list[list[Request]]:
    moved = [list(messages) for messages in [*turns, []]]
    moved[turn] += moved[turn - 1]
    moved[turn - 1] = []
    return moved if moved[-1] else moved[:-1]
