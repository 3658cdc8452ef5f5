"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

from common.batch import BatchPlan

from . import reference_solution as reference
from .reference_solution import *


class TurnLog(reference.TurnLog):
    def add(self, plan: BatchPlan | None) -> None:
        super().add(plan and BatchPlan(plan.turn, [], plan.decode_rows, plan.decode_slots))
