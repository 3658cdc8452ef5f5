"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.messages import Request

from . import reference_solution as reference
from .reference_solution import *


class Broadcast(reference.Broadcast):
    def receive(self) -> list[Request] | None:
        return super().receive() or None
