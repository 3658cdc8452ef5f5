"""Wrong, and hangs: a message is published when all of it lies in the ring."""

from __future__ import annotations

from typing import Any

from common.parallel.shared_memory import SharedBuffer

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Ring(reference.Ring):
    def put(self, data: bytes) -> None:
        pieces = [data[start : start + reference.PIECE] for start in range(0, len(data), reference.PIECE)]
        for number, piece in enumerate(pieces, 1):
            for free in self.free:
                free.wait()
            self.write(memoryview(piece), number < len(pieces))
        for full in self.full:
            for _ in pieces:
                full.post()


class Inlet(reference.Inlet):
    def make_ring(self, shared: SharedBuffer, rank: int) -> Ring:
        return Ring(shared, self._readers, rank - 1 if rank else None)
