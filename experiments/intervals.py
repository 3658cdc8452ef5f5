"""Comparing arms that were measured in turn: ratios pair by pair, their median, an interval of it.

On a shared machine neighbours slow everything down for seconds at a time. Two samples taken one after the other meet
the same neighbours, so their ratio says more than the ratio of two means.

The interval is the exact one of a median: between the k-th least and the k-th largest sample, with k as large as leaves
at least 95%. Whatever the samples' distribution, a sample lies above its median like a coin shows heads, so how often
the interval holds the median is a sum of binomials. A bootstrap of 7 samples would claim 95% and hold it in 87%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

CONFIDENCE = 0.95
ENOUGH = 6  # samples: with fewer no interval can reach CONFIDENCE


def coverage(n: int) -> float:
    """How often the interval of n samples holds the median that they are drawn around: at least CONFIDENCE from ENOUGH
    samples on."""
    return 1 - 2 * _tail(n, _depth(n))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """(low, high). Of fewer samples than ENOUGH it is their range."""
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    depth = _depth(len(ordered))
    return float(ordered[depth - 1]), float(ordered[-depth])


def _depth(n: int) -> int:
    """k: the interval goes from the k-th least to the k-th largest of n samples."""
    depth = 1
    while 2 * (depth + 1) <= n and 1 - 2 * _tail(n, depth + 1) >= CONFIDENCE:
        depth += 1
    return depth


def _tail(n: int, depth: int) -> float:
    """The probability that fewer than `depth` of n samples lie below the median."""
    return sum(math.comb(n, k) for k in range(depth)) / 2**n


def pairwise_ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """above[i] / below[i] of each pair: `median`, `low` and `high` of its interval, and all `pairs`."""
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    low, high = median_interval(pairs)
    return {"median": float(np.median(pairs)), "low": low, "high": high, "pairs": pairs}


def verdict(ratio: dict[str, Any], at_least: float | None = None, at_most: float | None = None) -> str:
    """ "holds" or "fails" when the whole interval is on one side of the bound, "undecided" when the bound is inside, or
    when there are fewer pairs than ENOUGH."""
    low, high = ratio["low"], ratio["high"]
    if len(ratio["pairs"]) < ENOUGH:
        return "undecided"
    if at_least is not None:
        return "holds" if low >= at_least else "fails" if high < at_least else "undecided"
    return "holds" if high <= at_most else "fails" if low > at_most else "undecided"


NO_DIFFERENCE = "no difference seen"
UNSTABLE = "unstable: the interval is wider than the effect"


def remark(ratio: dict[str, Any]) -> str:
    """What the interval says against the median: NO_DIFFERENCE where it holds 1, UNSTABLE, or nothing. Of a single pair
    nothing is known. In logarithms, so that of a ratio and its reciprocal the same is said."""
    if ratio["low"] <= 1 <= ratio["high"] or len(ratio["pairs"]) == 1:
        return NO_DIFFERENCE
    if ratio["low"] <= 0 or math.log(ratio["high"] / ratio["low"]) > abs(math.log(ratio["median"])):
        return UNSTABLE
    return ""


def shown(ratio: dict[str, Any]) -> str:
    """`2.61 [2.55, 2.70]`; of fewer pairs than ENOUGH `2.61 [2.55, 2.70: range of 4]`."""
    n = len(ratio["pairs"])
    if n == 1:
        return f"{_figures(ratio['median'])} (one pair)"
    few = f": range of {n}" if n < ENOUGH else ""
    return f"{_figures(ratio['median'])} [{_figures(ratio['low'])}, {_figures(ratio['high'])}{few}]"


def _figures(value: float) -> str:
    """Three figures; more where they would say 1 of what is not 1."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    decimals = (
        1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 or value == 0 else 2 - math.floor(math.log10(abs(value)))
    )
    while decimals < 6 and value != 1 and float(f"{value:.{decimals}f}") == 1:
        decimals += 1
    return f"{value:.{decimals}f}"
