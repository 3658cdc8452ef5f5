"""The picture of `bench idle`: cores burned without a request, and the first request after that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt  # noqa: E402, the backend must be chosen first
from matplotlib.axes import Axes  # noqa: E402

COLOURS = {"level": "#0072b2", "level, spin": "#56b4e9", "era": "#d55e00"}


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write idle.png and idle.svg; returns their paths."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    _bars(left, result, "cores", 1)
    left.set_title(f"Cores burned in {result['seconds']:g} s without a request", loc="left", fontweight="bold")
    left.set_ylabel("cores, median")
    _bars(right, result, "first", 1e3)
    right.set_title("The first request after that", loc="left", fontweight="bold")
    right.set_ylabel("ms until the last rank has it, median")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "idle.png", folder / "idle.svg"]
    plt.rcParams["svg.hashsalt"] = "idle"  # the same samples give the same file
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return [str(path) for path in paths]


def _bars(axes: Axes, result: dict[str, Any], name: str, unit: float) -> None:
    for number, (arm, colour) in enumerate(COLOURS.items()):
        cells = {cell["stage"]: cell for cell in result["cells"] if cell["arm"] == arm}
        for place, stage in enumerate(result["stages"]):
            values = cells[stage][name]
            if not values:
                continue
            x, height = place + (number - 1) * 0.27, float(np.median(values)) * unit
            axes.bar(x, height, width=0.25, color=colour, label=arm if place == 0 else None)
            text = f"{height:.2f}" if height >= 0.05 else f"{height:.4f}"
            axes.annotate(text, (x, height), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(result["stages"])), result["stages"])
    axes.margins(y=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
