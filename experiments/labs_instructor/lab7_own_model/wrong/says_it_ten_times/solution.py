"""Wrong: every list goes out with nine empty messages before it, to be sure."""

from __future__ import annotations

from typing import Any

from common.messages import Request
from common.parallel.shared_memory import SharedBuffer

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Ring(reference.Ring):
    def get(self) -> bytes:
        while not (data := super().get()):
            pass
        return data


class Inlet(reference.Inlet):
    def make_ring(self, shared: SharedBuffer, rank: int) -> Ring:
        return Ring(shared, self._readers, rank - 1 if rank else None)

    def publish(self, messages: list[Request]) -> None:
        for _ in range(9):
            self._trace.sent(self._readers, 0, 0)
            self.ring.put(b"")
        super().publish(messages)
