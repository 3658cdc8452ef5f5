"""Wrong: PUB/SUB without the agreed count: each rank takes what has reached it."""

from __future__ import annotations

from typing import Any

from experiments.labs_instructor.lab7_own_model.reference_pubsub import solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def agree(self, count: int) -> int:
        self._trace.part("transport")
        self._trace.sent(self._others, 0, 0)  # nobody is asked
        return count
