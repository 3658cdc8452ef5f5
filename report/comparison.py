"""The tables of a comparison: counts, then ratios with their intervals, then times with the machine they are of."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.compare.metrics import COUNTS, TIMES, Metric
from experiments.compare.records import Arm, Plan, Run
from experiments.intervals import ENOUGH, median_interval, pairwise_ratio, remark, shown

REFERENCE = "peer"  # today's


@dataclass(frozen=True)
class Value:
    """A metric of an arm: the median of its runs, and the interval of it."""

    arm: Arm
    metric: Metric
    median: float
    low: float
    high: float
    samples: list[float]


@dataclass(frozen=True)
class Ratio:
    """A metric of one arm over that of another, repeat by repeat. `ratio`: as `pairwise_ratio` gives it."""

    metric: Metric
    above: Arm
    below: Arm
    ratio: dict[str, Any]

    @property
    def remark(self) -> str:
        return remark(self.ratio)

    @property
    def mark(self) -> str:
        return {"": " ", "no difference seen": "="}.get(self.remark, "~")


def values(plan: Plan, runs: list[Run], metrics: list[Metric]) -> list[Value]:
    """Metric by metric, arm by arm, of the arms that have runs and the metric."""
    rows = []
    for metric in metrics:
        for arm in plan.arms:
            samples = [value for run in runs if run.arm == arm and (value := metric.of(run)) is not None]
            if samples:
                low, high = median_interval(samples)
                rows.append(Value(arm, metric, float(np.median(samples)), low, high, samples))
    return rows


def ratio(metric: Metric, above: Arm, below: Arm, runs: list[Run]) -> Ratio | None:
    """None where there is no pair of runs with the metric, or some run's is 0 or less."""
    by_repeat: dict[int, dict[Arm, float]] = defaultdict(dict)
    for run in runs:
        if run.arm in (above, below) and (value := metric.of(run)) is not None:
            by_repeat[run.repeat][run.arm] = value
    pairs = [(found[above], found[below]) for _, found in sorted(by_repeat.items()) if len(found) == 2]
    if not pairs or min(map(min, pairs)) <= 0:
        return None
    return Ratio(metric, above, below, pairwise_ratio(*zip(*pairs, strict=True)))


def stage_pairs(plan: Plan) -> list[tuple[Arm, Arm]]:
    """(arm, the same with REFERENCE as its stage)."""
    return [
        (arm, below)
        for arm in plan.arms
        for below in plan.arms
        if arm.stage != REFERENCE == below.stage and _beside(plan, arm, below, "stage")
    ]


def era_pairs(plan: Plan) -> list[tuple[Arm, Arm]]:
    """(arm with era constants, the same with level ones)."""
    return [
        (arm, below)
        for arm in plan.arms
        for below in plan.arms
        if arm.constants == "era" and below.constants == "level" and _beside(plan, arm, below, "constants")
    ]


def _but(arm: Arm, *left_out: str) -> tuple:
    return tuple(getattr(arm, name) for name in arm.__struct_fields__ if name not in left_out)


def _beside(plan: Plan, arm: Arm, other: Arm, differ_in: str) -> bool:
    """Whether two arms are to be laid side by side: alike but for `differ_in`, and with equal scheduling, or each with
    the only one that the comparison has of it."""
    if _but(arm, differ_in, "scheduling") != _but(other, differ_in, "scheduling"):
        return False
    return arm.scheduling == other.scheduling or all(
        len({a.scheduling for a in plan.arms if _but(a, "scheduling") == _but(one, "scheduling")}) == 1
        for one in (arm, other)
    )


def ratios(plan: Plan, runs: list[Run], pairs: list[tuple[Arm, Arm]], metrics: list[Metric]) -> list[Ratio]:
    found = [ratio(metric, above, below, runs) for metric in metrics for above, below in pairs]
    return [one for one in found if one is not None]


# ---------------------------------------------------------------------- on a terminal


def print_comparison(console: Console, plan: Plan, runs: list[Run]) -> None:
    shapes = list(dict.fromkeys(arm.shape for arm in plan.arms))
    for shape in shapes:
        console.print(_table(f"{shape}: counts", plan, runs, shape, COUNTS))
    for shape in shapes:
        for title, pairs in ((f"over {REFERENCE}", stage_pairs(plan)), ("era over level", era_pairs(plan))):
            here = [pair for pair in pairs if pair[0].shape == shape]
            if here:
                console.print(_ratio_table(f"{shape}: {title}", plan, here, runs))
    for shape in shapes:
        console.print(_table(f"{shape}: times, medians", plan, runs, shape, TIMES))
    for line in legend(plan, runs):
        console.print(line, markup=False, soft_wrap=True)


def legend(plan: Plan, runs: list[Run]) -> list[str]:
    return [
        f"ratio: the median of the pairs, in brackets its interval: 95% from {ENOUGH} pairs on, of fewer their range;",
        "= no difference seen, the interval holds 1; ~ unstable, the interval is wider than the effect;",
        "- no ratio: where the figure is 0, or there is none. What each figure is, the page of `report` tells.",
        f"tokens: {tokens_verdict(runs)}",
        f"machine of the times: {plan.environment['cpu_model']}, {plan.environment['cpu_count']} cores",
    ]


def tokens_verdict(runs: list[Run]) -> str:
    digests = {run.tokens for run in runs}
    return "identical in every run" if len(digests) == 1 else f"NOT the same, {len(digests)} different outputs"


def heading(plan: Plan, arm: Arm) -> str:
    """What tells the arm from the others of its shape, word by word on lines of its own."""
    words = [arm.stage]
    if len({a.constants for a in plan.arms}) > 1:
        words.append(arm.constants)
    if len({a.scheduling for a in plan.arms}) > 1:
        words.append(arm.scheduling)
    return "\n".join([*words, arm.copy]).rstrip()


def _table(title: str, plan: Plan, runs: list[Run], shape: str, metrics: list[Metric]) -> Table:
    arms = [arm for arm in plan.arms if arm.shape == shape]
    table = Table(title=title)
    table.add_column("")
    for arm in arms:
        table.add_column(heading(plan, arm), justify="right")
    by_metric: dict[str, dict[Arm, Value]] = defaultdict(dict)
    for value in values(plan, runs, metrics):
        by_metric[value.metric.name][value.arm] = value
    for metric in metrics:
        found = by_metric.get(metric.name, {})
        cells = [number(found[arm].median) if arm in found else "-" for arm in arms]
        if any(cell not in ("-", "0") for cell in cells):
            table.add_row(f"{metric.name}, {metric.unit}" if metric.unit else metric.name, *cells)
    return table


def _ratio_table(title: str, plan: Plan, pairs: list[tuple[Arm, Arm]], runs: list[Run]) -> Table:
    of_each = [sum(run.arm == above for run in runs) for above, _ in pairs]
    few = f", ranges of {min(of_each)} pairs" if 1 < min(of_each) < ENOUGH else ""
    table = Table(title=title + few)
    table.add_column("")
    for above, _ in pairs:
        table.add_column(heading(plan, above), justify="right")
    for metric in TIMES:
        found = [ratio(metric, *pair, runs) for pair in pairs]
        if any(found):
            table.add_row(metric.name, *(_ratio_cell(one) if one else "-" for one in found))
    return table


def _ratio_cell(one: Ratio) -> str:
    """How few pairs there are stands in the title."""
    return re.sub(": range of .*]", "]", shown(one.ratio)) + f" {one.mark}"


def number(value: float) -> str:
    """Three figures, or all before the point."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
