"""Wrong: the slots are used once; after the last one there is none."""

from __future__ import annotations

from typing import Any

from common.parallel.shared_memory import SharedBuffer

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Ring(reference.Ring):
    def _next(self) -> int:
        assert self.count < 2, "the ring is full"
        self.count += 1
        return (self.count - 1) * reference.SLOT_BYTES


class Inlet(reference.Inlet):
    def make_ring(self, shared: SharedBuffer, rank: int) -> Ring:
        return Ring(shared, self._readers, rank - 1 if rank else None)
