"""The picture of `bench planning`: one panel for each kind of turn and each axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.bench.figures import bare_frame, save
from experiments.bench.planning import RUNNING_MEANWHILE, WAITING_MEANWHILE, Series
from experiments.bench.rounds import spread
from report.pictures.style import plt

CAPTION = (
    "CPU time in microseconds that the scheduler of one rank spends on the steps of a turn, without any model, "
    "against the number of requests that run, wait or arrive; both scales are logarithmic. Solid: the policy lpm, "
    "with a band that is the 95% interval of the median of the repeats (45 unless the command says otherwise); "
    "dashed: fcfs. The figure behind a step's name is its time at the right end. Dotted lines show how linear and "
    "quadratic growth would look."
)
PANELS = (
    ("decode", "running", "A decode turn, by those that run", f"running requests ({WAITING_MEANWHILE} wait)"),
    ("decode", "waiting", "A decode turn, by those that wait", f"waiting requests ({RUNNING_MEANWHILE} run)"),
    ("burst", "arriving", "n requests arrive, enter and end together", "n, requests arriving at an idle engine"),
    ("admission", "running", "One request enters, by those that run", f"running requests ({WAITING_MEANWHILE} wait)"),
    ("admission", "waiting", "One request enters, by those that wait", f"waiting requests ({RUNNING_MEANWHILE} run)"),
)
# None is a stage's.
COLOURS = {
    "plan": "#5e3c99",
    "commit": "#8c510a",
    "add": "#888888",
    "order": "#c99700",
    "admit": "#5e3c99",
    "commit prefill": "#8c510a",
    "plan decode": "#a58fd0",
    "commit end": "#cc79a7",
}
EXPLANATION = """How to read this

CPU time that the scheduler of one rank
spends on a turn; the model is not in it.

solid    policy lpm, the default:
         longest cached prefix first
dashed   policy fcfs: first come, first served
band     95% interval of the median
dotted   what linear and quadratic growth
         would look like

lpm matches every waiting prompt, up to 128
of them; above that it falls back to fcfs,
hence the drop of order.

add      take a request in
order    sort those that wait
admit    choose from them, find slots
plan     choose the rows of a decode step
commit   take the new tokens in"""


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write planning.png and planning.svg; returns their paths."""
    series = [Series(**one) for one in result["series"]]
    figure, grid = plt.subplots(2, 3, figsize=(15, 9), layout="constrained")
    for axes, (kind, axis, title, label) in zip(grid.flat, PANELS, strict=False):
        curves = [one for one in series if (one.kind, one.axis) == (kind, axis)]
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlabel(label)
        axes.set_ylabel("CPU time of the step, microseconds")
        _draw_panel(axes, curves)
    grid.flat[-1].axis("off")
    grid.flat[-1].text(0, 0.95, EXPLANATION, va="top", family="monospace", fontsize=10)
    return save(figure, folder, "planning")


def _draw_panel(axes: Axes, curves: list[Series]) -> None:
    sizes = np.array(curves[0].sizes)
    has_zero = sizes[0] == 0
    axes.set_xscale("symlog", linthresh=sizes[1], linscale=0.5) if has_zero else axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    ends: dict[str, float] = {}
    for curve in curves:
        for part, samples in curve.microseconds.items():
            low, middle, high = ([spread(at_size)[end] for at_size in samples] for end in ("low", "median", "high"))
            lpm = curve.policy == "lpm"
            axes.plot(sizes, middle, color=COLOURS[part], linestyle="-" if lpm else "--", linewidth=2 if lpm else 1)
            if lpm:
                axes.fill_between(sizes, low, high, color=COLOURS[part], alpha=0.15, linewidth=0)
                ends[part] = middle[-1]
    _guides(axes, sizes, ends)
    _label_ends(axes, sizes[-1], ends)
    axes.grid(alpha=0.25)
    bare_frame(axes)


def _guides(axes: Axes, sizes: np.ndarray, ends: dict[str, float]) -> None:
    """What linear and quadratic growth over the last two doublings look like, above the curves."""
    late = sizes[sizes * 4 >= sizes[-1]]
    for power, name in ((1, "linear"), (2, "quadratic")):
        values = 1.8 * max(ends.values()) * (late / late[0]) ** power
        axes.plot(late, values, ":", color="black", linewidth=1)
        axes.annotate(name, (late[-1], values[-1]), xytext=(6, 0), textcoords="offset points", va="center")


def _label_ends(axes: Axes, x: float, ends: dict[str, float]) -> None:
    """Each part's name at the end of its curve, moved up where it would cover the one below."""
    lowest = 0.0
    bottom, top = axes.get_ylim()
    gap = (top / bottom) ** 0.05
    for part, value in sorted(ends.items(), key=lambda item: item[1]):
        y = max(value, lowest * gap)
        lowest = y
        axes.annotate(
            f"{part} {value:,.0f}",
            (x, y),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=COLOURS[part],
            fontweight="bold",
        )
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * 3.2)
