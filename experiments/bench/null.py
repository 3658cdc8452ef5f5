"""`bench null`: the A/A test. Every arm against itself, as `compare` compares: how often is there a difference?

Each stage with level and era constants at TP 1 and 2, twice: A and B. The order is `compare`'s own, shuffled in every
repeat. Of each of FIGURES, which are not one quantity under several names, there is an interval of B over A. Where
nothing differs an interval of 9 pairs holds 1 in 96 cases of 100; it is right if 85 to 99% do. Their half-widths say
how small a difference can be seen: the median of them must be at most 3% (sim) or 6% (cpu). Figures of one run are not
independent of each other, so a bad run shows in several of them.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.run_folder import run_folder
from evolution.bench_command import check_folder
from evolution.compare_args import DEFAULT_WORKLOAD
from evolution.compare_command import check_empty, check_same, expectation, remaining, run_all
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.compare.measure import arm_args
from experiments.compare.metrics import COUNTS, TIMES
from experiments.compare.records import (
    Arm,
    Plan,
    Run,
    Workload,
    drop_torn_line,
    locked,
    read_plan,
    read_runs,
    write_plan,
)
from experiments.intervals import shown
from report.comparison import ratio

FIGURES = (
    "TTFT",
    "TPOT",
    "control plane of a turn",
    "distribute of a turn",
    "CPU time a 1,000 tokens",
    "context switches a turn",
)
INTERVALS = 60
SHARE = (0.85, 0.99)
HALF_WIDTH = {"sim": 0.03, "cpu": 0.06}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(HALF_WIDTH), default="sim", help="default: sim")
    parser.add_argument("--model-path", help="on cpu; default: smollm2")
    parser.add_argument("--repeats", type=int, default=9, help="pairs of runs of each arm (default: 9)")
    parser.add_argument("--rounds", type=int, help="of requests in a run (default: compare's)")
    parser.add_argument("--runs", metavar="DIR", help="keep the runs there, as compare does (default: nowhere)")
    parser.add_argument("--resume", action="store_true", help="go on with the runs in DIR")


def run(options: argparse.Namespace) -> dict[str, Any]:
    for name in ("repeats", "rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(options, name)}")
    if options.resume and not options.runs:
        raise ValueError("--resume goes with --runs DIR")
    plan = make_plan(options.device, options.model_path, options.repeats, options.rounds)
    with run_folder() as temporary:
        folder = Path(options.runs) if options.runs else temporary
        check_folder(folder, "--runs")
        with locked(folder):
            if options.resume:
                check_resumable(folder, plan)
                drop_torn_line(folder)
            else:
                check_empty(folder)
            write_plan(folder, plan)
            todo = remaining(plan, read_runs(folder))
            print(expectation(plan, todo))
            run_all(folder, plan, todo, Console())
            return judged(plan, read_runs(folder))


def make_plan(device: str, model_path: str | None, repeats: int, rounds: int | None) -> Plan:
    settings: dict[str, Any] = {"device": device, "model_path": model_path}
    arms = [
        Arm(stage, constants, "replicated", tp_size, 1, copy)
        for tp_size, constants, copy, stage in itertools.product((1, 2), ("level", "era"), "AB", STAGES)
    ]
    args = [arm_args(arm, settings)[0] for arm in arms][0]
    num_prompts, input_len, output_len, usual = DEFAULT_WORKLOAD[device]
    workload = Workload(num_prompts, input_len, output_len, rounds or usual)
    return Plan(arms, repeats, workload, settings, environment(args))


def check_resumable(folder: Path, plan: Plan) -> None:
    """ValueError unless the runs there are of this plan, but for how many there shall be."""
    before = read_plan(folder)
    check_same(folder, before.environment, plan.environment)
    for what in ("arms", "workload", "settings"):
        if getattr(before, what) != getattr(plan, what):
            raise ValueError(f"--resume: {folder} was begun with other {what}: {getattr(before, what)}")


def judged(plan: Plan, runs: list[Run]) -> dict[str, Any]:
    """`intervals`: B over A of every figure of each arm, `judged` where it is one of FIGURES; `samples`: the figures of
    every run."""
    intervals = []
    for above in (arm for arm in plan.arms if arm.copy == "B"):
        below = next(arm for arm in plan.arms if arm.copy == "A" and _but_copy(arm) == _but_copy(above))
        for metric in (*TIMES, *COUNTS):
            found = ratio(metric, above, below, runs)
            if found and (metric in TIMES or metric.name in FIGURES):
                name = " ".join(map(str, _but_copy(above)))
                intervals.append({"arm": name, "metric": metric.name, "judged": metric.name in FIGURES, **found.ratio})
    counted = [one for one in intervals if one["judged"]]
    share = float(np.mean([one["low"] <= 1 <= one["high"] for one in counted]))
    half_width = float(np.median([(one["high"] - one["low"]) / 2 for one in counted]))
    device = plan.settings["device"]
    right = SHARE[0] <= share <= SHARE[1] and half_width <= HALF_WIDTH[device]
    return {
        "bench": "null",
        "device": device,
        "repeats": plan.repeats,
        "rounds": plan.workload.rounds,
        "shapes": list(dict.fromkeys(arm.shape for arm in plan.arms)),
        "intervals": intervals,
        "intervals_judged": len(counted),
        "samples": [
            {"arm": run.arm.name, "repeat": run.repeat, "order": run.order}
            | {metric.name: metric.of(run) for metric in (*TIMES, *COUNTS)}
            for run in runs
        ],
        "share_that_holds_1": share,
        "median_half_width": half_width,
        "most_half_width": HALF_WIDTH[device],
        "verdict": "undecided" if len(counted) < INTERVALS else "holds" if right else "fails",
        "environment": plan.environment,
    }


def _but_copy(arm: Arm) -> tuple[str, str, str, str]:
    return arm.stage, arm.constants, arm.scheduling, arm.shape


def show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="B over A, the same arm: the widest, and those that do not hold 1")
    for column in ("arm", "figure", "ratio [interval]"):
        table.add_column(column)
    counted = [one for one in result["intervals"] if one["judged"]]
    widest = sorted(counted, key=lambda one: one["low"] - one["high"])[:5]
    for one in counted:
        if one in widest or not one["low"] <= 1 <= one["high"]:
            table.add_row(one["arm"], one["metric"], shown(one))
    console.print(table)
    for name in FIGURES:
        widths = [(one["high"] - one["low"]) / 2 for one in counted if one["metric"] == name]
        if widths:
            console.print(f"{name}: median half-width {np.median(widths):.1%} of {len(widths)} intervals")
    console.print(
        f"{len(counted)} A/A intervals on {result['device']}: {result['share_that_holds_1']:.0%} hold 1"
        f" (85 to 99%), median half-width {result['median_half_width']:.1%} (at most {result['most_half_width']:.0%}):"
        f" {result['verdict']}",
        soft_wrap=True,
    )
