"""`bench planning`: the CPU time of a turn's planning against the number of running and of waiting requests.

No model: the Scheduler alone, told made-up token ids, as every rank of every stage runs it.

    decode     one decode turn of all that run; those that wait cannot enter       parts: plan, commit
    admission  one running request has gone: one of the waiting enters              parts: add, order, admit, commit
    burst      n requests reach an idle scheduler, enter together, and end together  parts: add, order, admit,
               commit the prefill, plan a decode turn, commit the end

Prompts have 128 tokens, of which 64 are one of eight shared beginnings; a decode turn commits one token to each
request. Times are CPU time of the thread, with Python's garbage collector off. All points are visited in turn, so that
each turn finds cold caches, as it does after a forward. A step is called quadratic when its time grows with a power of
n near 2; the power is fitted over the last three doublings, where constant costs weigh least, in each repeat for
itself. The interval is that of the repeats' median.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.policy import LPM_MOST_WAITING
from experiments.bench.option_lists import check_repeats
from experiments.bench.planning_turns import Load, sample_admission, sample_burst, sample_decode
from experiments.bench.rounds import median, spread, spread_verdict
from experiments.bench.verdicts import combined, in_words

POLICIES = ("lpm", "fcfs")
RUNNING = (16, 32, 64, 128, 256, 512, 1024)
WAITING = (0, 32, 64, 127, 250, 500, 1000, 2000)
RUNNING_MEANWHILE = 256  # while the waiting are varied
WAITING_MEANWHILE = 100  # while the running are varied: lpm sorts them all
QUADRATIC_FROM = 1.3


@dataclass(frozen=True)
class Sizes:
    running: tuple[int, ...] = RUNNING
    waiting: tuple[int, ...] = WAITING
    running_meanwhile: int = RUNNING_MEANWHILE
    waiting_meanwhile: int = WAITING_MEANWHILE


@dataclass
class Series:
    """One curve of each part: `microseconds[part][i]` are the samples at sizes[i], one per repeat."""

    kind: str  # decode, admission, burst
    axis: str  # running, waiting, arriving
    policy: str
    sizes: tuple[int, ...]
    microseconds: dict[str, list[list[float]]] = field(default_factory=dict)

    def add(self, index: int, sample: dict[str, float]) -> None:
        for part, value in sample.items():
            self.microseconds.setdefault(part, [[] for _ in self.sizes])[index].append(value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=45, help="samples of each point (default: 45)")
    parser.add_argument("--out", metavar="DIR", help="write planning.png and planning.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    check_repeats(options.repeats)
    print(f"{options.repeats} repeats: about {10 + options.repeats:.0f} s")
    series = measure(Sizes(), options.repeats)
    slopes = [slope for one in series for slope in growth(one)]
    return {
        "bench": "planning",
        "unit": "us of CPU time per turn",
        "series": [vars(one) for one in series],
        "slopes": slopes,
        "quadratic_from": QUADRATIC_FROM,
        "verdict": combined(slope["verdict"] for slope in slopes),
    }


# ---------------------------------------------------------------------- measuring


def measure(sizes: Sizes, repeats: int) -> list[Series]:
    """Each repeat visits every point once, so that a busy minute of the machine does not fall on one size."""
    series, visits = [], []
    for policy in POLICIES:
        for kind, sample in (("decode", sample_decode), ("admission", sample_admission)):
            by_running = Series(kind, "running", policy, sizes.running)
            by_waiting = Series(kind, "waiting", policy, sizes.waiting)
            for index, running in enumerate(sizes.running):
                visits.append((by_running, index, sample, Load(policy, running, sizes.waiting_meanwhile)))
            for index, waiting in enumerate(sizes.waiting):
                visits.append((by_waiting, index, sample, Load(policy, sizes.running_meanwhile, waiting)))
            series += [by_running, by_waiting]
        burst = Series("burst", "arriving", policy, sizes.running)
        visits += [
            (burst, index, sample_burst, Load(policy, n, 0, filled=False)) for index, n in enumerate(burst.sizes)
        ]
        series.append(burst)
    gc.collect()
    gc.disable()
    for _ in range(repeats):
        for one, index, sample, load in visits:
            one.add(index, sample(load))
    gc.enable()
    return series


# ---------------------------------------------------------------------- growth


def growth(series: Series) -> list[dict[str, Any]]:
    """For each part: the power of n with which its time grows over the last three doublings, and its 95% interval.
    0 is no growth, 1 linear, 2 quadratic."""
    slopes = [_slope(series, part, series.sizes[-1]) for part in series.microseconds]
    if series.policy == "lpm" and series.axis != "running":
        # Above this lpm is fcfs: how sorting grows must be looked at below.
        sorts_up_to = [size for size in series.sizes if size <= LPM_MOST_WAITING][-1]
        slopes += [_slope(series, part, sorts_up_to) for part in series.microseconds if part == "order"]
    return slopes


def _slope(series: Series, part: str, end: int) -> dict[str, Any]:
    chosen = [index for index, size in enumerate(series.sizes) if max(1, end / 8) <= size <= end]
    samples = np.array([series.microseconds[part][index] for index in chosen])
    powers = fit_powers(np.array(series.sizes)[chosen], samples)
    return {
        "kind": series.kind,
        "axis": series.axis,
        "up_to": end,
        "part": part,
        "policy": series.policy,
        "us": median(samples[-1]),
        "power": powers["median"],
        "low": powers["low"],
        "high": powers["high"],
        "verdict": spread_verdict(powers, at_most=QUADRATIC_FROM),
    }


def fit_powers(sizes: np.ndarray, samples: np.ndarray) -> dict[str, Any]:
    """The slope of log time over log size in each repeat, as `spread`. samples: [sizes, repeats]."""
    return spread(np.polyfit(np.log(sizes), np.log(samples), 1)[0].tolist())


def show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="CPU time at the largest n; the power of n it grows with < its 95% bound")
    table.add_column("turn without its model")
    for policy in POLICIES:
        table.add_column(f"{policy}, us", justify="right")
        table.add_column("power", justify="right")
    rows: dict[tuple, dict[str, Any]] = {}
    for one in result["slopes"]:
        rows.setdefault((one["kind"], one["axis"], one["up_to"], one["part"]), {})[one["policy"]] = one
    before = None
    for (kind, axis, up_to, part), by_policy in rows.items():
        if (kind, axis, up_to) != before:
            table.add_section()
            table.add_row(f"[bold]{kind}, {up_to} {axis}[/bold]")
            before = (kind, axis, up_to)
        cells = []
        for slope in by_policy.values():
            cells += [f"{slope['us']:.0f}", f"{slope['power']:.2f} < {slope['high']:.2f}"]
        table.add_row(f"  {part}", *cells)
    console.print(table)
    steepest = max(result["slopes"], key=lambda s: s["high"])
    word = {"holds": "no step is quadratic", "undecided": "NOT ALL STEPS ARE CLEARLY BELOW QUADRATIC"}.get(
        result["verdict"], "A STEP GROWS FASTER THAN ALLOWED"
    )
    console.print(f"steps: {in_words(slope['verdict'] for slope in result['slopes'])}")
    console.print(
        f"{word}: the steepest is {steepest['part']} of {steepest['kind']} against {steepest['axis']}"
        f" ({steepest['policy']}), power {steepest['power']:.2f}, at most {steepest['high']:.2f} (95%);"
        f" quadratic would be 2, the bound is {QUADRATIC_FROM}",
        soft_wrap=True,
    )
