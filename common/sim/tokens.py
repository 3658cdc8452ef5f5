"""The tokens of `--device sim`: a hash of (the request's seed, the token's position), so the same whatever ran it."""

from __future__ import annotations

import numpy as np

_GAMMA, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hashed_tokens(seeds: np.ndarray, positions: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """seeds int64 [N], positions int64 [N] -> N of token_ids (int32).

    As in `common.sampler`, two rounds of splitmix64's finalizer; here over arrays, since 256 rows one by one would take
    longer than the forward that they stand for.
    """
    hashes = _mix(_mix(seeds.view(np.uint64)) + positions.view(np.uint64))
    return token_ids[(hashes % np.uint64(len(token_ids))).astype(np.intp)]


def _mix(x: np.ndarray) -> np.ndarray:
    z = x + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
