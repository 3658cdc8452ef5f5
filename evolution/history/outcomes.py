"""What a check came to."""

from __future__ import annotations

from typing import NamedTuple

AGREES = "agrees"
DIFFERS = "differs"
UNKNOWN = "not checked"


class Outcome(NamedTuple):
    what: str
    outcome: str
    detail: str
