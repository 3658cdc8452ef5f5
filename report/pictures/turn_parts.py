"""Stacked bars: where a turn of rank 0 goes, per turn and per token, and the router's beside it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from experiments.compare.measure import IDLE
from experiments.compare.metrics import leaders, turn_count
from experiments.compare.records import RUNS, Arm, Run, Turns
from report.comparison import number
from report.pictures.style import PARTS, WIDTH, Picture, group_of, part_patches, plain, save, slug

CAPTION = (
    "Where the wall time of a working turn goes at {shape}: left per turn, right per output token. Means of all turns "
    "of all runs, since medians of parts would not add up; so a bar is longer than the median turn in the table of "
    "times, which a prefill or a turn that took long does not move. Each panel has an axis of its own. rank 0 is the "
    "rank that leads a replica. A router (where rpyc has one of its own) runs beside it, so its bar is not to be added "
    "to rank 0's: most of it is the time that its calls last (distribute). wait_for_router is rank 0's time between "
    "two calls; pacing_sleep is where a version's sleeps stand. Waiting for work (idle) is left out. Of several "
    "replicas the turns are averaged, and per token added up."
)


def draw(folder: Path, runs: list[Run], arms: list[Arm], names: dict[Arm, str], shape: str) -> Picture | None:
    """`arms` are of one shape; a row of panels for each kind of constants."""
    here = [arm for arm in arms if any(run.arm == arm and turn_count(run) for run in runs)]
    if not here:
        return None
    kinds = list(dict.fromkeys(arm.constants for arm in here))
    bars = {kind: bars_of(runs, [arm for arm in here if arm.constants == kind], names) for kind in kinds}
    heights = [len(bars[kind]) for kind in kinds]
    figure, grid = plt.subplots(
        len(kinds), 2, figsize=(WIDTH, 0.36 * sum(heights) + 0.85 * len(kinds) + 0.9), squeeze=False,
        height_ratios=heights, layout="constrained",
    )  # fmt: skip
    seen: set[str] = set()
    for row, kind in zip(grid, kinds, strict=True):
        for column, (axes, unit) in enumerate(zip(row, ("turn", "output token"), strict=True)):
            seen |= stack(axes, {name: both[column] for name, both in bars[kind].items()})
            axes.set_title(f"{kind} constants, per {unit}", loc="left", fontsize=10, fontweight="bold")
            axes.set_xlabel(f"µs per {unit}", fontsize=8.5)
            if column:
                axes.set_yticklabels([])
    figure.legend(handles=part_patches(seen), loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
    count = sum(run.arm in here for run in runs)
    return save(
        figure, folder, f"parts-{slug(shape)}", f"Where a turn goes, {shape}", CAPTION.format(shape=shape), RUNS, count
    )


def bars_of(runs: list[Run], arms: list[Arm], names: dict[Arm, str]) -> dict[str, tuple[dict, dict]]:
    """Bar -> (part -> us per turn, part -> us per output token); means over the arm's runs."""
    bars = {}
    for arm in arms:
        of_arm = [run for run in runs if run.arm == arm and turn_count(run)]
        bars[f"{names[arm]}: rank 0"] = _means([(run, parts_of(leaders(run))) for run in of_arm])
        routers = [(run, parts_of(routers_of(run))) for run in of_arm]
        if any(parts for _, parts in routers):
            bars[f"{names[arm]}: router"] = _means(routers)
    return bars


def routers_of(run: Run) -> list[Turns]:
    """Threads that call ranks of other processes."""
    return [turns for turns in run.turns if turns.rank is None and turns.working and "router" in turns.process]


def parts_of(threads: list[Turns]) -> dict[str, float]:
    """Part -> wall us in all working turns; `distribute` as one, without idle."""
    total: dict[str, float] = defaultdict(float)
    for turns in threads:
        for part, (wall, _) in turns.parts.items():
            if part != IDLE:
                total[group_of(part)] += wall
    return dict(total)


def _means(runs: list[tuple[Run, dict[str, float]]]) -> tuple[dict, dict]:
    """In the order of PARTS, so that a page of the same runs is the same page."""
    names = sorted({name for _, parts in runs for name in parts}, key=list(PARTS).index)
    per_turn = {n: float(np.mean([parts.get(n, 0) / turn_count(run) for run, parts in runs])) for n in names}
    per_token = {n: float(np.mean([parts.get(n, 0) / run.output_tokens for run, parts in runs])) for n in names}
    return per_turn, per_token


def stack(axes: Axes, bars: dict[str, dict[str, float]]) -> set[str]:
    """Bar -> part -> us, one bar below the other; returns the parts that are there."""
    widest = max((sum(parts.values()) for parts in bars.values()), default=1)
    for row, parts in enumerate(bars.values()):
        left = 0.0
        for part, (colour, hatch) in PARTS.items():
            if width := parts.get(part, 0):
                axes.barh(row, width, 0.62, left, color=colour, hatch=hatch, edgecolor="#555555", linewidth=0.3)
                left += width
        axes.text(left + widest * 0.012, row, number(left), va="center", fontsize=8.5)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.set_xlim(0, widest * 1.16)
    plain(axes)
    axes.tick_params(axis="y", length=0)
    return {part for parts in bars.values() for part, width in parts.items() if width}
