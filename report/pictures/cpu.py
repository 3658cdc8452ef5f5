"""CPU time by process: who burns the cores."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from experiments.compare.records import RUNS, Arm, Run
from report.comparison import number
from report.pictures.style import WIDTH, Picture, plain, save

ROLES = {
    "main": ("#1f4e79", ""),
    "detokenizer": ("#66a61e", "////"),
    "router, dispatcher": ("#d55e00", ""),
    "rank 0": ("#e69f00", "xxx"),
    "other ranks": ("#f7d9a0", "\\\\\\\\"),
}
CAPTION = (
    "CPU time of all processes (user and system, all threads) for 1,000 output tokens. Means of the runs, since "
    "medians of parts would not add up; so a bar may differ a little from the median in the table of times. main is "
    "the caller's process with the tokenizer; rank 0 leads a replica, and holds the router where rpyc has none of its "
    "own (TP 1, DP 1) and the controller of broadcast. The other ranks are added up, and with several replicas their "
    "rank 0s too. What only simulating takes is left out."
)
RANK = re.compile(r"TP(\d+)$")


def draw(folder: Path, runs: list[Run], arms: list[Arm], names: dict[Arm, str]) -> Picture | None:
    here = [arm for arm in arms if any(run.arm == arm and run.processes for run in runs)]
    if not here:
        return None
    shapes = list(dict.fromkeys(arm.shape for arm in here))
    rows = [[arm for arm in here if arm.shape == shape] for shape in shapes]
    figure, grid = plt.subplots(
        len(shapes), 1, figsize=(WIDTH, 0.27 * len(here) + 0.42 * len(shapes) + 0.9), squeeze=False, sharex=True,
        height_ratios=[len(of_shape) for of_shape in rows], layout="constrained",
    )  # fmt: skip
    seen = {}
    for axes, shape, of_shape in zip(grid[:, 0], shapes, rows, strict=True):
        for row, arm in enumerate(of_shape):
            left = 0.0
            for role, seconds in by_role([run for run in runs if run.arm == arm]).items():
                colour, hatch = ROLES[role]
                seen[role] = axes.barh(
                    row, seconds, 0.7, left, color=colour, hatch=hatch, edgecolor="#555555", linewidth=0.3
                )
                left += seconds
            axes.text(left, row, f" {number(left)}", va="center", fontsize=8.5)
        axes.set_yticks(range(len(of_shape)), [names[arm] for arm in of_shape])
        axes.set_ylim(len(of_shape) - 0.4, -0.6)
        axes.set_title(shape, loc="left", fontsize=10, fontweight="bold")
        plain(axes)
        axes.tick_params(axis="y", length=0)
    grid[-1, 0].set_xlim(0, grid[-1, 0].get_xlim()[1] * 1.04)
    grid[-1, 0].set_xlabel("core-seconds per 1,000 output tokens", fontsize=9)
    shown = [role for role in ROLES if role in seen]
    figure.legend([seen[role] for role in shown], shown, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    count = sum(run.arm in here for run in runs)
    return save(figure, folder, "cpu-by-process", "CPU time by process", CAPTION, RUNS, count)


def role_of(name: str) -> str:
    if name == "main":
        return "main"
    if name == "evo-detokenizer":
        return "detokenizer"
    rank = RANK.search(name)
    if rank is None:
        return "router, dispatcher"
    return "rank 0" if rank[1] == "0" else "other ranks"


def by_role(runs: list[Run]) -> dict[str, float]:
    """Role -> core-seconds per 1,000 output tokens, without what only simulating takes; mean of the runs."""
    samples: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        total = dict.fromkeys(ROLES, 0.0)
        for process in run.processes:
            total[role_of(process.name)] += process.cpu_us / 1e6
        total["rank 0"] -= run.stats.get("sim_cpu_seconds", 0)
        total["other ranks"] -= run.stats.get("sim_others_cpu_seconds", 0)
        for role, seconds in total.items():
            samples[role].append(max(0.0, seconds) / run.output_tokens * 1000)
    return {role: float(np.mean(values)) for role, values in samples.items() if any(values)}
