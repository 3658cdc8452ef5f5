"""The picture of `bench idle`: cores used without a request, and how late a blocked engine's first request is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments.bench.figures import GREY, INK, bare_frame, dots, save
from experiments.bench.idle import MOST_CORES, MOST_LATER
from report.pictures.style import plt

CAPTION = (
    "Left: how many cores all processes of an engine use together while it has no request, on a logarithmic "
    "scale; `level` blocks when idle, `level, spin` and the constants of the era keep looking for work. Right: "
    "the first request after a silence, in milliseconds: by how much an engine that blocked takes it in later "
    "than one that spun, after a short silence and after the long one of the left panel. Each dot is one engine "
    "(right: a pair of engines, one started after the other) (7 unless the command says otherwise); the line "
    "beside the dots is the 95% interval of their median, the tick the median. Dotted: the most that `level` is "
    "allowed."
)
ARMS = {"level": (INK, "o"), "level, spin": (GREY, "s"), "era": ("#b8860b", "^")}
SILENCES = {"first": (INK, "o", "after {settle:g} s"), "first_after_window": ("#b8860b", "s", "after {seconds:g} s")}


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write idle.png and idle.svg; returns their paths."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    _draw_cores(left, result)
    _draw_later(right, result)
    for axes in (left, right):
        axes.set_xticks(range(len(result["stages"])), result["stages"])
        axes.set_xlim(-0.5, len(result["stages"]) - 0.4)
        axes.grid(axis="y", alpha=0.25)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, frameon=False)
        bare_frame(axes)
    return save(figure, folder, "idle")


def _draw_cores(axes: Axes, result: dict[str, Any]) -> None:
    for number, (arm, (colour, marker)) in enumerate(ARMS.items()):
        cells = {cell["stage"]: cell for cell in result["cells"] if cell["arm"] == arm}
        for place, stage in enumerate(result["stages"]):
            label = arm if place == 0 else None
            dots(axes, place + (number - 1) * 0.27, cells[stage]["cores"], colour, marker, label)
    axes.axhline(MOST_CORES, color="black", linestyle=":", linewidth=1, label=f"most: {MOST_CORES:g}")
    axes.set_yscale("log")
    axes.set_title(f"Cores used in {result['seconds']:g} s without a request", loc="left", fontweight="bold")
    axes.set_ylabel("cores (CPU seconds per second)")


def _draw_later(axes: Axes, result: dict[str, Any]) -> None:
    for number, (kind, (colour, marker, words)) in enumerate(SILENCES.items()):
        for place, one in enumerate(result["later"]):
            if kind in one:
                label = words.format(**result) if place == 0 else None
                values = [1e3 * value for value in one[kind]["values"]]
                dots(axes, place + (number - 0.5) * 0.3, values, colour, marker, label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhline(1e3 * MOST_LATER, color="black", linestyle=":", linewidth=1, label=f"most: {1e3 * MOST_LATER:g} ms")
    axes.set_title("The first request: how much later than if it spun", loc="left", fontweight="bold")
    axes.set_ylabel("difference, ms")
