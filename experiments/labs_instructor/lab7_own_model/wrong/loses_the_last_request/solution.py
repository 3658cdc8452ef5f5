"""Wrong: of several messages that come together the last is dropped, on every rank."""

from __future__ import annotations

from typing import Any

from common.messages import Request

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def drain(self, busy: bool) -> list[Request]:
        messages = super().drain(busy)
        return messages[:-1] if len(messages) > 1 else messages
