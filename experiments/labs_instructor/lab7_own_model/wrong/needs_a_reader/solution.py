"""Wrong: with one rank it writes into a ring that nobody reads."""

from __future__ import annotations

from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def share(size: int, folder: str) -> Any:
    return reference.share(max(size, 2), folder)


class Inlet(reference.Inlet):
    def __init__(self, context: Any, shared: Any, rank: int, size: int, *rest: Any) -> None:
        super().__init__(context, shared, rank, max(size, 2), *rest)
