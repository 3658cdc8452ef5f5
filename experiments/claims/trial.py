"""A claim's trial: what is predicted of it, and the run that measures that; and running them, one after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from common.processes import ProcessFailed
from evolution.engine import EngineError
from experiments.claims.bounds import Bound, Holds, together

Samples = list[list[float]]


@dataclass(frozen=True)
class Trial:
    """`how`: what is run, in a few words. `predicted`: what is true of the claim, which of a claim that is wrong is
    something else than it says. `seconds`: about how long the run takes on two cores. `measure()`: the samples of each
    bound, in their order."""

    number: int
    how: str
    predicted: tuple[Bound, ...]
    seconds: float
    measure: Callable[[], Samples]

    @property
    def says(self) -> str:
        return "; ".join(map(str, self.predicted))


@dataclass(frozen=True)
class Outcome:
    """`holds`: whether all of the prediction came out. `error`: why there are no samples; then it is "undecided"."""

    trial: Trial
    samples: Samples
    holds: Holds
    seconds: float
    error: str = ""

    @property
    def measured(self) -> str:
        if self.error:
            return f"not measured: {self.error}"
        pairs = zip(self.trial.predicted, self.samples, strict=True)
        return "; ".join(f"{bound.what}: {bound.measured(samples)}" for bound, samples in pairs)

    @property
    def failed(self) -> bool:
        return self.holds == "no" or bool(self.error)

    def record(self) -> dict[str, Any]:
        """For a result file: words, and the raw samples beside the bounds. A bound that is open at one side has no
        number there."""
        bounds = []
        for place, bound in enumerate(self.trial.predicted):
            samples = self.samples[place] if self.samples else []
            least, most = (end if math.isfinite(end) else None for end in (bound.least, bound.most))
            bounds.append({"what": bound.what, "allowed": bound.allowed, "least": least, "most": most})
            bounds[-1] |= {"ratio": bound.ratio, "samples": samples}
            if samples:
                bounds[-1] |= {"measured": bound.measured(samples), "holds": bound.holds(samples)}
        return {
            "number": self.trial.number,
            "how": self.trial.how,
            "predicted": self.trial.says,
            "measured": self.measured,
            "came_out": self.holds,
            "error": self.error,
            "seconds": round(self.seconds, 2),
            "bounds": bounds,
        }


def run_trial(trial: Trial) -> Outcome:
    """A run whose engine ends, or that waits in vain, is told in its outcome: the others go on."""
    began = time.monotonic()
    try:
        samples = [[float(sample) for sample in of_bound] for of_bound in trial.measure()]
        holds = together([bound.holds(s) for bound, s in zip(trial.predicted, samples, strict=True)])
    except (EngineError, ProcessFailed, TimeoutError) as error:
        first = str(error).partition("\n")[0]
        return Outcome(trial, [], "undecided", time.monotonic() - began, first)
    return Outcome(trial, samples, holds, time.monotonic() - began)


class Clock:
    """How long the rest will take: the trials' own seconds, corrected by what those that have run took. (A trial that
    finds the engine of an earlier one measured already takes less; so the correction looks at all of them.)"""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._left = [trial.seconds for trial in trials]
        self._expected = self._took = 0.0

    def ran(self, outcome: Outcome) -> None:
        self._expected += self._left.pop(0)
        self._took += outcome.seconds

    @property
    def remaining(self) -> float:
        """s"""
        speed = self._took / self._expected if self._expected >= 5 else 1.0
        return sum(self._left) * speed
