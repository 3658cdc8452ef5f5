"""Wrong in 6a: it takes today's supervision for that of every version."""

from __future__ import annotations

from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def main_hears(stage: str, dp_size: int, rank: int, how: str) -> bool:
    return True
