"""What a prefill turn may take in: the estimate of tokens to come, and the budgets of one turn.

All constants are those of SGLang 0.4.0.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.kv_cache import KvCache
from common.request_state import RequestState
from common.scheduler_config import SchedulerConfig

RATIO_INIT = 0.7  # share of a request's max_new_tokens that it is expected to produce, times the conservativeness
RATIO_FLOOR = 0.14  # of the initial ratio
RATIO_DECAY_STEPS = 600  # decode turns from the initial ratio to the floor
CLIP_MAX_NEW = 4096  # tokens to come that are counted of one request at most
RETRACT_DECODE_STEPS = 20  # decode turns that the survivors of a retraction should be able to do


def decode_steps(state: RequestState) -> int:
    """The decode turns that a retraction makes room for, as far as `state` is concerned."""
    return min(state.remaining, RETRACT_DECODE_STEPS)


class NewTokenRatio:
    """How much of what running requests may still produce is kept free for them. It falls while decoding goes well:
    more requests are let in. A retraction says that too many were let in, and puts it up to what was seen."""

    def __init__(self, conservativeness: float) -> None:
        self._init = min(RATIO_INIT * conservativeness, 1.0)
        self._floor = self._init * RATIO_FLOOR
        self._step = (self._init - self._floor) / RATIO_DECAY_STEPS
        self.value = self._init

    def reset(self) -> None:
        self.value = self._init

    def decay(self) -> None:
        self.value = max(self.value - self._step, self._floor)

    def retracted(self, survivors: list[RequestState]) -> None:
        produced = sum(len(state.output) for state in survivors)
        allowed = sum(state.max_new for state in survivors)
        self.value = min((produced + RETRACT_DECODE_STEPS * len(survivors)) / allowed, 1.0)


class PrefillBudget:
    """Three budgets of one prefill turn: KV slots, prompt tokens (`max_prefill_tokens`, which the first request may
    exceed) and the chunk (`chunked_prefill_size`, which nothing exceeds).

    `reserved` slots are kept back: for running requests by the ratio, in full for those that this turn takes in. What
    a prompt lacks after its chunk need not be: having used up the chunk it is the last to be taken in, and no decode
    turn comes before its next chunk. A request alone in the engine always fits: prompt + max_new <= pool.
    """

    def __init__(self, config: SchedulerConfig, kv: KvCache, running: Iterable[RequestState], ratio: float) -> None:
        self._kv = kv
        self._reserved = ratio * sum(min(state.remaining, CLIP_MAX_NEW) for state in running)
        self._prompt_left = config.max_prefill_tokens
        self._chunk_left = config.chunked_prefill_size if config.chunked_prefill_size > 0 else None
        self._first = True

    @property
    def chunk_full(self) -> bool:
        """Whether no further request can get a token in this turn."""
        return self._chunk_left == 0

    def fits(self, state: RequestState) -> bool:
        """Whether the slots suffice for the rest of `state`, whose prefix is locked already: locking it has taken
        it from what can be evicted."""
        return state.to_prefill + min(state.remaining, CLIP_MAX_NEW) <= self._kv.available - self._reserved

    def take(self, state: RequestState) -> int:
        """How many tokens of `state` to compute in this turn, charged; 0 if they are more prompt tokens than are
        left."""
        n = state.to_prefill
        if self._chunk_left is not None:
            n = min(n, self._chunk_left)
        if n > self._prompt_left and not self._first:
            return 0
        self._first = False
        self._prompt_left -= n
        if self._chunk_left is not None:
            self._chunk_left -= n
        self._reserved += min(state.remaining, CLIP_MAX_NEW)
        return n
