"""Wrong: a turn's messages go through a set, whose order is another one in each process."""

from __future__ import annotations

from typing import Any

import msgspec

from common.messages import Request

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def turn(self, busy: bool) -> list[Request]:
        messages = super().turn(busy)
        if self._inbox is not None:
            return messages
        decode = msgspec.msgpack.Decoder(Request).decode
        return [decode(data) for data in {msgspec.msgpack.encode(message) for message in messages}]
