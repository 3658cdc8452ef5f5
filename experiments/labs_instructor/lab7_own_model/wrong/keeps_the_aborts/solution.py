"""Wrong: an abort is thought to concern rank 0 only."""

from __future__ import annotations

from typing import Any

from common.messages import AbortRequest, Request

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def publish(self, messages: list[Request]) -> None:
        super().publish([message for message in messages if not isinstance(message, AbortRequest)])
