"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.messages import Request

from . import reference_solution as reference
from .reference_solution import *


class Broadcast(reference.Broadcast):
    def receive(self) -> list[Request]:
        messages = super().receive()
        if messages:
            self.wire.broadcast(length_header(1), source=self.wire.rank)
        return messages
