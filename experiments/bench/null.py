"""`bench null`: the A/A test. Every arm against itself, as `compare` compares: how often is there a difference?

A right instrument sees one in about one interval of twenty. All figures of a comparison are tried, on every stage: of
at least 60 intervals 85 to 99% must hold 1, and the median of their half-widths must be at most 3% (sim) or 6% (cpu).
The order is `compare`'s own: between two runs that make a pair, the other stages run.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from evolution.compare_args import DEFAULT_WORKLOAD
from evolution.compare_command import expectation, remaining
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.compare.measure import arm_args, measure
from experiments.compare.metrics import TIMES
from experiments.compare.records import Arm, Plan, Run, Workload
from experiments.intervals import shown
from report.comparison import Ratio, ratio

INTERVALS = 60
SHARE = (0.85, 0.99)
HALF_WIDTH = {"sim": 0.03, "cpu": 0.06}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(HALF_WIDTH), default="sim", help="default: sim")
    parser.add_argument("--model-path", help="on cpu; default: smollm2")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of runs of each arm (default: 7)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {options.repeats}")
    plan = make_plan(options.device, options.model_path, options.repeats)
    todo = remaining(plan, [])
    print(expectation(plan, todo))
    runs = [
        measure(arm, plan.settings, plan.workload, repeat, order)
        for order, (repeat, arm) in enumerate(track(todo, description="A/A"))
    ]
    return judged(plan, runs)


def make_plan(device: str, model_path: str | None, repeats: int) -> Plan:
    """On sim at DP 1 and 2; on cpu, where a run is long and cores are few, at DP 1."""
    settings: dict[str, Any] = {"device": device, "model_path": model_path}
    arms = []
    for tp_size, dp_size, copy, stage in itertools.product((1, 2), (1, 2) if device == "sim" else (1,), "AB", STAGES):
        arm = Arm(stage, "level", "", tp_size, dp_size, copy)
        arm_args(arm, settings)
        arms.append(arm)
    args, _ = arm_args(arms[0], settings)
    return Plan(arms, repeats, Workload(*DEFAULT_WORKLOAD[device]), settings, environment(args))


def judged(plan: Plan, runs: list[Run]) -> dict[str, Any]:
    """`intervals`: B over A of each figure of each arm; `samples`: the figures of every run."""
    ratios = []
    for above in plan.arms:
        below = next(arm for arm in plan.arms if arm.copy == "A" and _same_but_copy(arm, above))
        if above.copy == "B":
            ratios += [found for metric in TIMES if (found := ratio(metric, above, below, runs))]
    half_widths = [(found.ratio["high"] - found.ratio["low"]) / 2 for found in ratios]
    share = float(np.mean([_holds_one(found) for found in ratios]))
    half_width = float(np.median(half_widths))
    device = plan.settings["device"]
    return {
        "bench": "null",
        "device": device,
        "repeats": plan.repeats,
        "intervals": [{"arm": found.below.name, "metric": found.metric.name, **found.ratio} for found in ratios],
        "samples": [
            {"arm": run.arm.name, "repeat": run.repeat, **{metric.name: metric.of(run) for metric in TIMES}}
            for run in runs
        ],
        "share_that_holds_1": share,
        "median_half_width": half_width,
        "most_half_width": HALF_WIDTH[device],
        "holds": len(ratios) >= INTERVALS and SHARE[0] <= share <= SHARE[1] and half_width <= HALF_WIDTH[device],
        "environment": plan.environment,
    }


def _same_but_copy(arm: Arm, other: Arm) -> bool:
    return (arm.stage, arm.shape) == (other.stage, other.shape)


def _holds_one(found: Ratio) -> bool:
    return found.ratio["low"] <= 1 <= found.ratio["high"]


def show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="B over A, the same arm: the widest, and those that do not hold 1")
    for column in ("arm", "figure", "ratio [95% interval]"):
        table.add_column(column)
    widest = sorted(result["intervals"], key=lambda found: found["low"] - found["high"])[:5]
    for found in result["intervals"]:
        if found in widest or not found["low"] <= 1 <= found["high"]:
            table.add_row(found["arm"], found["metric"], shown(found))
    console.print(table)
    console.print(
        f"{len(result['intervals'])} A/A intervals on {result['device']}: {result['share_that_holds_1']:.0%} hold 1"
        f" (85 to 99%), median half-width {result['median_half_width']:.1%} (at most {result['most_half_width']:.0%}):"
        f" {'holds' if result['holds'] else 'fails'}",
        soft_wrap=True,
    )
