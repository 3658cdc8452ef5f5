"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.messages import Request

from . import reference_solution as reference
from .reference_solution import *


def late(turns: list[list[Request]], turn: int) -> list[list[Request]]:
    return reference.late(turns, turn)[: len(turns)]
