"""A prediction in bounds, and what samples say of it.

A bound is on a count, or on a ratio of two things that were measured in the same run: never on milliseconds, which
would be this machine's. Every sample of a count must keep it. Of a ratio the whole interval of the median must, by
`experiments.intervals`: a ratio of times varies, and one sample outside says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.bench.rounds import spread
from experiments.intervals import ENOUGH, shown

Holds = Literal["yes", "no", "undecided"]


@dataclass(frozen=True)
class Bound:
    """`what` is from `least` to `most`, both included; `ratio`: it is one of times or sizes, and no count."""

    what: str
    least: float
    most: float
    ratio: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.allowed}"

    @property
    def allowed(self) -> str:
        if self.least == self.most:
            return _figure(self.least)
        if self.most == math.inf:
            return f"at least {_figure(self.least)}"
        if self.least == -math.inf:
            return f"at most {_figure(self.most)}"
        return f"{_figure(self.least)} to {_figure(self.most)}"

    def holds(self, samples: Sequence[float]) -> Holds:
        """ValueError without a sample."""
        if not samples:
            raise ValueError(f"{self.what}: there is no sample")
        if not self.ratio:
            return "yes" if all(self.least <= sample <= self.most for sample in samples) else "no"
        found = spread(samples)
        if len(samples) < ENOUGH:
            return "undecided"
        if self.least <= found["low"] and found["high"] <= self.most:
            return "yes"
        return "no" if found["high"] < self.least or found["low"] > self.most else "undecided"

    def measured(self, samples: Sequence[float]) -> str:
        if self.ratio:
            return shown({**spread(samples), "pairs": list(samples)})
        least, most = min(samples), max(samples)
        return _figure(least) if least == most else f"{_figure(least)} to {_figure(most)}"


def exactly(what: str, count: float) -> Bound:
    return Bound(what, count, count)


def at_least(what: str, count: float) -> Bound:
    return Bound(what, count, math.inf)


def at_most(what: str, count: float) -> Bound:
    return Bound(what, -math.inf, count)


def between(what: str, least: float, most: float) -> Bound:
    return Bound(what, least, most)


def ratio(what: str, least: float = -math.inf, most: float = math.inf) -> Bound:
    return Bound(what, least, most, ratio=True)


def together(verdicts: Sequence[Holds]) -> Holds:
    """Of a prediction: one bound that does not hold is enough."""
    if "no" in verdicts:
        return "no"
    return "undecided" if "undecided" in verdicts else "yes"


def _figure(value: float) -> str:
    if float(value).is_integer():
        return f"{value:,.0f}"
    text = f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
    return f"{value:.5g}" if float(text).is_integer() else text  # 1.001 is not 1
