"""Comparing arms that were measured in turn: ratios pair by pair, their median, a bootstrap 95% interval of it.

On a shared machine neighbours slow everything down for seconds at a time. Two samples taken one after the other meet
the same neighbours, so their ratio says more than the ratio of two means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000
PERCENTILES = (2.5, 97.5)


def bootstrap_interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% interval of the median: of RESAMPLES draws with replacement, the 2.5th and 97.5th percentile."""
    values = np.asarray(samples, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[draws], axis=1), PERCENTILES)
    return float(low), float(high)


def pairwise_ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """above[i] / below[i] of each pair: `median`, `low` and `high` of its 95% interval, and all `pairs`."""
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    low, high = bootstrap_interval(pairs)
    return {"median": float(np.median(pairs)), "low": low, "high": high, "pairs": pairs}


def verdict(ratio: dict[str, Any], at_least: float | None = None, at_most: float | None = None) -> str:
    """ "holds" or "fails" when the whole interval is on one side of the bound, "undecided" when the bound is inside."""
    low, high = ratio["low"], ratio["high"]
    if at_least is not None:
        return "holds" if low >= at_least else "fails" if high < at_least else "undecided"
    return "holds" if high <= at_most else "fails" if low > at_most else "undecided"


def remark(ratio: dict[str, Any]) -> str:
    """A warning about a ratio that says little, or nothing."""
    if ratio["low"] <= 1 <= ratio["high"]:
        return "no difference seen"
    if ratio["high"] - ratio["low"] > abs(ratio["median"] - 1):
        return "unstable: the interval is wider than the effect"
    return ""


def shown(ratio: dict[str, Any]) -> str:
    """`2.61 [2.55, 2.70]`."""
    digits = 2 if ratio["median"] < 10 else 1
    return f"{ratio['median']:.{digits}f} [{ratio['low']:.{digits}f}, {ratio['high']:.{digits}f}]"
