"""Log-probabilities of tokens: log_softmax of the raw logits, before penalties and temperature.

Row by row, so that a row's bits don't depend on how many rows there are: exponentials in float32, sums in float64.
"""

from __future__ import annotations

import math

import numpy as np

from common.messages import TokenLogprobs, pack_ids
from common.sampler import most_likely


def token_logprobs(logits: np.ndarray, ids: np.ndarray, top: int) -> TokenLogprobs:
    """logits float32 [n, vocab], ids int [n]: the log-probability of ids[i] by logits[i], and the `top` highest."""
    values = np.empty(len(ids))
    top_ids = np.empty((len(ids), top), dtype=np.int32)
    top_values = np.empty((len(ids), top))
    for i, (row, token) in enumerate(zip(logits, ids, strict=True)):
        highest = row.max()
        normaliser = float(highest) + math.log(np.exp(row - highest).sum(dtype=np.float64))
        values[i] = float(row[token]) - normaliser
        if top:
            top_ids[i] = most_likely(row, top)
            top_values[i] = row[top_ids[i]].astype(np.float64) - normaliser
    return TokenLogprobs(pack_ids(ids), values.tobytes(), top_ids.tobytes(), top_values.tobytes())
