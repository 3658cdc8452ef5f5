"""How the pictures of the benches are written, and what their curves share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bench.rounds import spread
from report.pictures.style import PNG_DPI, plt

# Of what is no stage: those have the colours of report.pictures.style, and nothing else has.
INK, GREY, PALE = "#222222", "#888888", "#cccccc"


def save(figure: Figure, folder: Path, name: str) -> list[str]:
    """Writes folder/name.png and .svg; the same samples give the same files. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with plt.rc_context({"svg.hashsalt": name}):
        figure.savefig(paths[0], dpi=PNG_DPI)
        figure.savefig(paths[1], metadata={"Date": None})
    plt.close(figure)
    return [str(path) for path in paths]


def curve(axes: Axes, points: list[tuple[float, Sequence[float]]], **look: Any) -> None:
    """A line through the medians of (x, values of the rounds), and their 95% intervals as a band."""
    xs = [x for x, _ in points]
    spreads = [spread(values) for _, values in points]
    axes.plot(xs, [one["median"] for one in spreads], **look)
    low, high = ([one[end] for one in spreads] for end in ("low", "high"))
    axes.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def dots(axes: Axes, x: float, values: Sequence[float], colour: str, marker: str, label: str | None) -> None:
    """A dot for each value; beside them their median and its 95% interval."""
    found = spread(values)
    axes.plot([x] * len(values), values, marker, color=colour, alpha=0.5, markersize=5, label=label)
    beside = x + 0.08
    axes.plot([beside] * 2, [found["low"], found["high"]], color=colour, linewidth=2)
    axes.plot(beside, found["median"], "_", color=colour, markersize=11, markeredgewidth=2)


def bare_frame(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
