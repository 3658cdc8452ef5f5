"""What several trials look at is measured once in a run of the trials, and anew in the next run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

F = TypeVar("F", bound=Callable)
_kept: list[Callable] = []


def once(function: F) -> F:
    """Called again with the same arguments it gives what it gave, until `forget`."""
    kept = cache(function)
    _kept.append(kept)
    return kept


def forget() -> None:
    for function in _kept:
        function.cache_clear()
