"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import msgspec

from common.batch import BatchPlan

from . import reference_solution as reference
from .reference_solution import *


class TurnLog(reference.TurnLog):
    def add(self, plan: BatchPlan | None) -> None:
        self.numbers.append(hash((*self.numbers[-1:], msgspec.msgpack.encode(plan))) % (1 << 64))
