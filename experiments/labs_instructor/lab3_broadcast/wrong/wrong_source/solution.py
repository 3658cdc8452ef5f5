"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.messages import Request

from . import reference_solution as reference
from .reference_solution import *


class Broadcast(reference.Broadcast):
    def receive(self) -> list[Request]:
        header = length_header(0)
        self.wire.broadcast(header, source=self.wire.rank)
        content = self.room(length_of(header))
        self.wire.broadcast(content, source=self.wire.rank)
        return self.encoding.decode(content)
