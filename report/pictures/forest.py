"""Ratios with their intervals, against 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

from experiments.intervals import remark, shown
from report.comparison import Ratio
from report.pictures.style import WIDTH, Picture, StageStyle, plain, save, stage_style
from report.words import interval_words

METRICS = ("TTFT", "TPOT", "control plane of a turn", "control plane of a token", "CPU time a 1,000 tokens")
ROOM = 0.2  # of an axis, between two ticks
CAPTION = (
    "Each mark is the median of the ratios pair by pair, with its {interval}. Left of the line at 1 is less, right of "
    "it more. Filled: a difference. Hollow: no difference seen, the interval holds 1. Crossed: unstable, the interval "
    "is wider than the effect{single}. The scales are logarithmic and each panel's own."
)


def caption(ratios: Sequence[dict[str, Any]]) -> str:
    """`ratios`: as `pairwise_ratio` gives them."""
    counts = {len(ratio["pairs"]) for ratio in ratios}
    several = counts - {1}
    single = "; a pair alone has no interval" if 1 in counts else ""
    return CAPTION.format(interval=interval_words(several) if several else "interval", single=single)


def draw(
    folder: Path, name: str, what: str, ratios: list[Ratio], row_of: Callable[[Ratio], str], source: str, runs: int
) -> Picture | None:
    """A panel for each of METRICS, a row for each pair of arms; `row_of`: its name."""
    shown = [metric for metric in METRICS if any(one.metric.name == metric for one in ratios)]
    if not shown:
        return None
    rows = list(dict.fromkeys(row_of(one) for one in ratios if one.metric.name in shown))
    figure, grid = plt.subplots(
        1, len(shown), figsize=(WIDTH, 0.27 * len(rows) + 1.45), squeeze=False, sharey=True, layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.09)
    for axes, metric in zip(grid[0], shown, strict=True):
        for one in (one for one in ratios if one.metric.name == metric):
            mark(axes, rows.index(row_of(one)), one.ratio, stage_style(one.above.stage))
        axes.set_title(_two_lines(metric), loc="left", fontsize=9, fontweight="bold")
        finish(axes)
        axes.set_xlabel("ratio", fontsize=8.5)
    grid[0, 0].set_yticks(range(len(rows)), rows)
    grid[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    add_legend(figure)
    return save(figure, folder, name, what, caption([one.ratio for one in ratios]), source, runs)


def rows(axes: Axes, found: Sequence[tuple[str, dict[str, Any], StageStyle]], beside: bool = True) -> None:
    """(name, ratio, look), one below the other. `beside`: with the figures in words to the right."""
    for row, (_, ratio, style) in enumerate(found):
        mark(axes, row, ratio, style)
        if beside:
            axes.annotate(
                shown(ratio), (1.01, row), xycoords=("axes fraction", "data"), fontsize=8.5, va="center",
                annotation_clip=False,
            )  # fmt: skip
    axes.set_yticks(range(len(found)), [name or "ratio" for name, _, _ in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    finish(axes)


def mark(axes: Axes, row: int, ratio: dict[str, Any], style: StageStyle) -> None:
    """One ratio as a point and its interval."""
    word = remark(ratio) if len(ratio["pairs"]) > 1 else "unstable"
    colour = style.colour
    face = "white" if word else colour
    axes.plot([ratio["low"], ratio["high"]], [row, row], color=colour, linewidth=1.8, alpha=0.65, zorder=2)
    axes.plot(ratio["median"], row, style.marker, color=colour, markerfacecolor=face, markersize=6, zorder=3)
    if word.startswith("unstable"):
        axes.plot(ratio["median"], row, "x", color=colour, markersize=4, zorder=4)


def finish(axes: Axes) -> None:
    """A logarithmic scale with few ticks that can be read, and the line at 1."""
    axes.axvline(1, color="#333333", linewidth=0.9, zorder=1)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 0.8), max(high, 1.25)
    axes.set_xlim(low, high)
    ticks = ticks_between(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(plt.NullLocator())
    axes.grid(axis="x", alpha=0.25)
    plain(axes)
    axes.tick_params(axis="y", length=0)


def ticks_between(low: float, high: float) -> list[float]:
    """1, and on either side of it the outermost round number, where it does not stand too near."""
    steps = sorted([round(base * 10.0**power, 6) for power in range(-4, 6) for base in (1, 2, 5)] + [0.8, 1.25, 1.5, 3])
    room = ROOM * np.log(high / low)
    ticks = [1.0]
    below = [tick for tick in steps if low <= tick < 1]
    above = [tick for tick in steps if 1 < tick <= high]
    below = _apart(below, room) or _apart(below, room / 2)  # a tick on either side is worth some crowding
    above = _apart(above, room) or _apart(above, room / 2)
    for side in (below, above[::-1]):
        ticks += side[:1]
        between = [tick for tick in side[1:] if all(abs(np.log(tick / other)) > room for other in ticks)]
        ticks += between[len(between) // 2 : len(between) // 2 + 1]
    return sorted(ticks)


def _apart(ticks: list[float], room: float) -> list[float]:
    """Those that do not stand too near 1."""
    return [tick for tick in ticks if abs(np.log(tick)) > room]


def add_legend(figure: Figure) -> None:
    look = {"color": "#444444", "marker": "o", "markersize": 6, "linewidth": 1.8}
    hollow = Line2D([], [], **look, markerfacecolor="white")
    cross = Line2D([], [], color="#444444", marker="x", markersize=4, linestyle="")
    figure.legend(
        [Line2D([], [], **look), hollow, (hollow, cross)],
        ["a difference", "no difference seen", "unstable: the interval is wider than the effect"],
        handler_map={tuple: HandlerTuple(ndivide=1)}, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5,
    )  # fmt: skip


def _two_lines(title: str) -> str:
    words = title.split()
    return title if len(title) < 16 else " ".join(words[:-2]) + "\n" + " ".join(words[-2:])
