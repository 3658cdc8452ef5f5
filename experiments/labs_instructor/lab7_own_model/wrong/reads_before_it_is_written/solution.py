"""Wrong: a reader reads the next slot without asking whether there is anything."""

from __future__ import annotations

from typing import Any

from common.parallel.shared_memory import SharedBuffer

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Ring(reference.Ring):
    def get(self) -> bytes:
        piece, _ = self.read()
        self.free[0].post()
        return piece


class Inlet(reference.Inlet):
    def make_ring(self, shared: SharedBuffer, rank: int) -> Ring:
        return Ring(shared, self._readers, rank - 1 if rank else None)
