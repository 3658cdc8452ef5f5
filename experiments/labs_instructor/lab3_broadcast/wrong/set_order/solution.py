"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import msgspec

from common.messages import Request

from . import reference_solution as reference
from .reference_solution import *


class Broadcast(reference.Broadcast):
    def send(self, messages: list[Request]) -> None:
        unique = {msgspec.msgpack.encode(message) for message in messages}
        super().send([msgspec.msgpack.decode(one, type=Request) for one in unique])
