"""Wrong: the writer does not wait until a slot has been read."""

from __future__ import annotations

from typing import Any

from common.parallel.shared_memory import SharedBuffer

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Ring(reference.Ring):
    def put(self, data: bytes) -> None:
        view = memoryview(data)
        while True:
            piece, view = view[: reference.PIECE], view[reference.PIECE :]
            self.write(piece, bool(view))
            for full in self.full:
                full.post()
            if not view:
                return


class Inlet(reference.Inlet):
    def make_ring(self, shared: SharedBuffer, rank: int) -> Ring:
        return Ring(shared, self._readers, rank - 1 if rank else None)
