"""Wrong: with nothing to do rank 0 goes round its loop, and takes the others with it."""

from __future__ import annotations

from typing import Any

from common.messages import Request

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def drain(self, busy: bool) -> list[Request]:
        return self._inbox.drain(wait=False)
