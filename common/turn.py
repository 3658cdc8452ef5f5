"""TurnRules: how long a turn goes on, and which of its tokens are streamed. Each version had its own.

They change when tokens are sent and when newcomers are seen, never which tokens there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.constants import constant

if TYPE_CHECKING:
    from common.request_state import RequestState


@dataclass(frozen=True)
class TurnRules:
    decode_steps: int = constant("most decode steps of one turn: so long a newcomer waits for its prefill", default=1)
    early_stop: str = constant(
        "a turn of several steps ends early: never; or once there is output and the first request of the batch streams"
        " (first_streams); or any running one does (any_streams)",
        default="never",
    )
    stream_interval: int = constant("decode steps between two streamed chunks", default=1)
    stream_phase: str = constant(
        "what the interval counts: each request its own tokens (request), or the engine its decode steps (engine)",
        default="request",
    )
    first_token: bool = constant("whether a request's first token is streamed at once", default=True)

    def goes_on(self, steps: int, has_output: bool, running: list[RequestState]) -> bool:
        """Whether a turn of so many decode steps takes one more. `running`: what would be in it, at least one."""
        if steps >= self.decode_steps:
            return False
        if not has_output or self.early_stop == "never":
            return True
        if self.early_stop == "first_streams":
            return not running[0].stream
        return not any(state.stream for state in running)

    def streams(self, state: RequestState, decode_steps: int) -> bool:
        """Whether a request that goes on sends what it has; decode_steps: of the engine, so far."""
        if not state.stream:
            return False
        if self.first_token and len(state.output) == 1:
            return True
        if self.stream_phase == "engine":
            return decode_steps % self.stream_interval == 0
        return len(state.output) - state.sent >= self.stream_interval


ONE_STEP = TurnRules()  # level: a decode step is a turn
