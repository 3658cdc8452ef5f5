"""Samples that were taken in rounds, each of a list: their medians, and the interval of those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.intervals import median_interval, verdict


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def medians(rounds: Sequence[Any]) -> list[float]:
    """Of each round; a round may also be a single value."""
    return [median(np.atleast_1d(one)) for one in rounds]


def pooled(rounds: Sequence[Any]) -> np.ndarray:
    """The samples of all rounds."""
    return np.concatenate([np.atleast_1d(one) for one in rounds])


def spread(values: Sequence[float]) -> dict[str, Any]:
    """`median`, `low` and `high` of its interval, and the `values`: one of each round."""
    low, high = median_interval(values)
    return {"median": median(values), "low": low, "high": high, "values": list(values)}


def spread_verdict(found: dict[str, Any], at_most: float) -> str:
    """Of a `spread`, as `intervals.verdict`."""
    return verdict({"low": found["low"], "high": found["high"], "pairs": found["values"]}, at_most=at_most)
