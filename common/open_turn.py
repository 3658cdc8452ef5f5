"""OpenTurn: a plan that is not committed yet, and the requests it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from common.batch import BatchPlan, PrefillSeq
from common.request_state import RequestState


@dataclass(slots=True)
class OpenTurn:
    """`states`: the requests of `plan`, in its order. `joined`: of a prefill, whether its requests run already."""

    plan: BatchPlan
    states: list[RequestState]
    joined: bool = False

    def prefilled(self) -> list[tuple[RequestState, PrefillSeq]]:
        """Empty for a decode step."""
        return list(zip(self.states, self.plan.prefill, strict=True)) if self.plan.prefill else []
