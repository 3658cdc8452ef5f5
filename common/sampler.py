"""Sampling: the next token as a pure function of (seed, position, logits, the request's own history).

Every rank samples for itself from the same all-gathered bits, so every rank gets the same token, and a request gets
the same tokens whoever shares its batch, on whichever replica, and after it was retracted and computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from common.batch import RowSampling
from common.penalties import RowHistory
from common.sampling_params import GREEDY_BELOW

# How many of the most likely tokens are looked at first; most draws fall among them. Four times as many each time
# that is not enough, up to the vocabulary.
FIRST_CANDIDATES = 64

_MASK = (1 << 64) - 1


def sample(
    logits: torch.Tensor,
    rows: list[RowSampling],
    positions: list[int],
    histories: Sequence[RowHistory | None] | None = None,
) -> np.ndarray:
    """logits float32 [M, vocab], any device -> token ids int32 [M].

    positions[i] is the index, within request i, of the token that is being sampled. histories[i] is there for a row
    that asks for more than RowSampling says; None when no row does.

    FloatingPointError if a row's logits are not all finite.
    """
    tokens = _argmax(logits)
    # Of a row with a NaN that is the NaN's place.
    if not torch.isfinite(logits[torch.arange(len(tokens)), torch.from_numpy(tokens).long()]).all():
        raise FloatingPointError("the model's logits are not finite: its weights or its config.json do not fit")
    for i, (row, position) in enumerate(zip(rows, positions, strict=True)):
        history = histories[i] if histories else None
        if history is None and is_greedy(row):
            continue
        row_logits = logits[i].cpu().numpy()
        min_p = 0.0
        if history is not None:
            row_logits = history.apply(row_logits, position)
            min_p = history.extras.min_p
        tokens[i] = row_logits.argmax() if is_greedy(row) else _sample_row(row_logits, row, min_p, position)
    return tokens


def _argmax(logits: torch.Tensor) -> np.ndarray:
    """Of equal logits the lowest id. numpy takes 90 us for 16 rows of 49,152 where torch.argmax takes 1.9 ms."""
    ids = logits.numpy().argmax(-1) if logits.device.type == "cpu" else torch.argmax(logits, dim=-1).cpu().numpy()
    return ids.astype(np.int32)


def is_greedy(row: RowSampling) -> bool:
    return row.temperature < GREEDY_BELOW or row.top_k == 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for each pair of ints: splitmix64's finalizer (Steele, Lea, Flood 2014) over both.

    The top 53 bits of mix(mix(seed) + position) / 2**53; every double of that form is equally likely.
    """
    return (_mix(_mix(seed) + position) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _sample_row(logits: np.ndarray, row: RowSampling, min_p: float, position: int) -> int:
    """logits float [vocab]. Inverse CDF in float64 over the tokens in descending order of probability.

    temperature first, then the top_k most likely, then the smallest set of those that holds top_p of their mass, then
    those of it that are at least min_p times as likely as the most likely one.
    """
    draw = uniform(row.seed, position)
    highest = float(logits.max())

    def weights(chosen: np.ndarray) -> np.ndarray:
        scaled = (chosen.astype(np.float64) - highest) / row.temperature
        return torch.exp(torch.from_numpy(scaled)).numpy()  # a third of np.exp's time

    if 0 < row.top_k < len(logits):
        ids = most_likely(logits, row.top_k)
        return int(ids[_draw(weights(logits[ids]), None, row.top_p, min_p, draw)])
    mass = weights(logits).sum()
    for count in _candidate_counts(len(logits)):
        ids = most_likely(logits, count)
        chosen = _draw(weights(logits[ids]), mass if count < len(logits) else None, row.top_p, min_p, draw)
        if chosen is not None:
            return int(ids[chosen])
    raise AssertionError("the whole vocabulary holds the whole mass")


def _candidate_counts(vocab: int) -> Iterator[int]:
    count = FIRST_CANDIDATES
    while count < vocab:
        yield count
        count *= 4
    yield vocab


def most_likely(logits: np.ndarray, count: int) -> np.ndarray:
    """The ids of the `count` highest logits, highest first, equal ones by id."""
    least = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= least)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def _draw(weights: np.ndarray, mass: float | None, top_p: float, min_p: float, draw: float) -> int | None:
    """The index chosen by `draw` in [0, 1) among candidates with these weights, descending from 1, of `mass` in all;
    mass None: there are no others.

    None when the choice lies beyond the candidates given.
    """
    cumulative = np.cumsum(weights)
    complete = mass is None
    if complete:
        mass = cumulative[-1]
    kept = None  # how many of the candidates can be chosen, once that is known
    if top_p < 1:
        last = int(np.searchsorted(cumulative, top_p * mass, side="left"))
        kept = last + 1 if last < len(weights) else None
    if min_p > 0:
        likely = int(np.count_nonzero(weights >= min_p))
        if likely < len(weights) or complete:
            kept = likely if kept is None else min(kept, likely)
    if kept is not None:
        mass = cumulative[kept - 1]
    elif top_p < 1 or min_p > 0:
        return None
    # draw * mass can round up to mass, which is past the end.
    chosen = int(np.searchsorted(cumulative, min(draw * mass, np.nextafter(mass, 0)), side="right"))
    return chosen if chosen < len(weights) else None
