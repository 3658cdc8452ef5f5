"""Cumulative distributions of the latencies, a line for each stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from experiments.compare.records import RUNS, Arm, Run
from report.comparison import number
from report.pictures.style import WIDTH, Picture, log_ticks, plain, save, slug, stage_style

COLUMNS = {"TTFT": "ttft_us", "TPOT": "tpot_us", "ITL": "itl_us", "gap between chunks": "gap_us"}
LOG_FROM = 30  # times between the ends of a panel
LEAST_MS = 0.001  # samples are whole microseconds
MOST_POINTS = 400  # of a line
CAPTION = (
    "Latencies with {kind} constants, all runs together: the height of a line at a time is the share of samples that "
    "took at most that long. A line further left is shorter; a flat end is a slow tail. Panels hold what lies between "
    "0.2 and 99.8% of the samples; each has an axis of its own, some of them logarithmic. Where a chunk brings several "
    "tokens, ITL divides the gap before it among them, and the gap between chunks is what a reader waits. Where every "
    "chunk brings one token, ITL is that gap, and is not drawn again."
)


def draw(folder: Path, runs: list[Run], arms: list[Arm], names: dict[Arm, str], kind: str) -> Picture | None:
    """`arms` have one kind of constants; a row of panels for each shape."""
    here = [arm for arm in arms if any(run.arm == arm and run.ttft_us for run in runs)]
    if not here:
        return None
    shapes = list(dict.fromkeys(arm.shape for arm in here))
    columns = dict(COLUMNS)
    if all(run.itl_us == run.gap_us for run in runs if run.arm in here):  # every chunk brought one token
        del columns["ITL"]
    figure, grid = plt.subplots(
        len(shapes), len(columns), figsize=(WIDTH, 2.1 * len(shapes) + 0.6), squeeze=False, layout="constrained"
    )
    lines = {}
    for row, shape in zip(grid, shapes, strict=True):
        for axes, (title, field) in zip(row, columns.items(), strict=True):
            lines |= _panel(axes, runs, [arm for arm in here if arm.shape == shape], names, field)
            short = title.replace("gap between chunks", "chunk gap")
            axes.set_title(f"{shape}: {short}", loc="left", fontsize=9, fontweight="bold")
            axes.set_xlabel(f"{title}, ms", fontsize=8.5)
        row[0].set_ylabel("share of samples", fontsize=8.5)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=9,
                  handlelength=3.2)  # fmt: skip
    count = sum(run.arm in here for run in runs)
    return save(figure, folder, f"latency-{slug(kind)}", f"Latencies, {kind} constants", CAPTION.format(kind=kind),
                RUNS, count)  # fmt: skip


def _panel(axes: Axes, runs: list[Run], arms: list[Arm], names: dict[Arm, str], field: str) -> dict:
    lines = {}
    pooled = {arm: _pooled(runs, arm, field) for arm in arms}
    everything = np.concatenate(list(pooled.values()))
    if not len(everything):
        axes.text(0.5, 0.5, "no samples", transform=axes.transAxes, ha="center", color="#777777")
        axes.set_xticks([])
        return {}
    for arm, samples in pooled.items():
        if len(samples):
            style = stage_style(arm.stage)
            heights = np.arange(1, len(samples) + 1) / len(samples)
            if len(samples) > MOST_POINTS:
                places = np.linspace(0, len(samples) - 1, MOST_POINTS).round().astype(int)
                samples, heights = samples[places], heights[places]
            lines[names[arm]] = axes.step(
                samples, heights, where="post", color=style.colour, linestyle=style.line, linewidth=1.6
            )[0]
    low, high = np.percentile(everything, (0.2, 99.8))
    if high > LOG_FROM * low:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        ticks = log_ticks(*axes.get_xlim())
        axes.set_xticks(ticks, [number(tick) for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif high > low:
        axes.set_xlim(max(0.0, low - 0.05 * (high - low)), high + 0.05 * (high - low))
        axes.xaxis.set_major_locator(plt.MaxNLocator(4))
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    axes.grid(alpha=0.25)
    plain(axes)
    return lines


def _pooled(runs: list[Run], arm: Arm, field: str) -> np.ndarray:
    """ms, sorted."""
    us = [us for run in runs if run.arm == arm for us in getattr(run, field)]
    return np.maximum(np.sort(np.asarray(us, float)) / 1000, LEAST_MS)
