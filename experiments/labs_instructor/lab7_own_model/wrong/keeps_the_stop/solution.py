"""Wrong: rank 0 takes the stop for its own; the others wait for ever."""

from __future__ import annotations

from typing import Any

from common.messages import Request, StopRequest

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def publish(self, messages: list[Request]) -> None:
        if not any(isinstance(message, StopRequest) for message in messages):
            super().publish(messages)
