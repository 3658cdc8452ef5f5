"""What a request's own history does to its logits, before temperature: SGLang's penalties, in SGLang's order.

1. presence and frequency: a token that was produced c > 0 times loses presence_penalty + c * frequency_penalty.
2. minimum length: until min_new_tokens tokens were produced, eos and stop token ids can't be sampled. Only tokens are
   forbidden, as in SGLang: a stop string may still end the request earlier.
3. repetition: the logit of a token that is in the prompt or was produced is divided by repetition_penalty if it is
   positive, else multiplied by it.

All of it is a function of the request alone: its prompt, what it has produced, and its parameters.
"""

from __future__ import annotations

import numpy as np

from common.batch import RowExtras
from common.messages import SamplingParams, unpack_ids

# Below it a repetition penalty could turn a logit into infinity.
LEAST_REPETITION = 1e-30


class RowHistory:
    """One row of the slot table whose request asks for more than plain sampling: its extras, and its tokens so far."""

    def __init__(self, extras: RowExtras, vocab_size: int) -> None:
        self.extras = extras
        self.prompt = unpack_ids(extras.prompt_ids)
        forbidden = unpack_ids(extras.forbidden)
        self._forbidden = forbidden[forbidden < vocab_size]
        self._repetition = max(extras.repetition_penalty, LEAST_REPETITION)
        self._penalised = has_penalty(extras)
        if self._penalised:
            produced = unpack_ids(extras.output_ids)
            self._counts = np.bincount(produced, minlength=vocab_size)  # int64 [vocab]: how often produced
            self._seen = np.zeros(vocab_size, dtype=bool)  # [vocab]: in the prompt, or produced
            self._seen[self.prompt] = True
            self._seen[produced] = True

    def add(self, token: int) -> None:
        """The row has produced one more token."""
        if self._penalised:
            self._counts[token] += 1
            self._seen[token] = True

    def apply(self, logits: np.ndarray, position: int) -> np.ndarray:
        """logits float32 [vocab] of the token at `position` of the request -> what it is sampled from: float64 [vocab],
        or `logits` itself where nothing applies."""
        too_short = position - self.extras.prompt_len < self.extras.min_new_tokens
        if not self._penalised and not too_short:
            return logits
        logits = logits.astype(np.float64)
        if self._penalised:
            ids = np.flatnonzero(self._counts)
            logits[ids] -= self.extras.presence_penalty + self._counts[ids] * self.extras.frequency_penalty
        if too_short:
            logits[self._forbidden] = -np.inf
        if self._penalised:
            ids = np.flatnonzero(self._seen)
            seen = logits[ids]
            logits[ids] = np.where(seen > 0, seen / self._repetition, seen * self._repetition)
        return logits


def has_penalty(params: SamplingParams | RowExtras) -> bool:
    """Whether tokens seen before matter; `params` are a request's SamplingParams or a row's RowExtras."""
    return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
