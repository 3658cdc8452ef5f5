"""Wrong in 6c: it expects a death between two messages only."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def last_words(reader: Connection) -> list[Any]:
    words = []
    while True:
        try:
            words.append(reader.recv())
        except EOFError:
            return words
