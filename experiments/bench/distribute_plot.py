"""The picture of `bench distribute`: for each stage the engine's time beside its mechanism's, and their ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt  # noqa: E402, the backend must be chosen first
from matplotlib.axes import Axes  # noqa: E402

from experiments.bench.distribute import AT_MOST  # noqa: E402
from experiments.intervals import shown  # noqa: E402

KINDS = {"0": "decode turn of 16, nothing new", "16": "16 requests of 512 ids arrive"}
ENGINE, FLOOR, BUSY = "#0072b2", "#cccccc", "#888888"


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write distribute.png and distribute.svg; returns their paths."""
    rows = len(result["ranks"])
    figure, grid = plt.subplots(rows, 2, figsize=(13, 0.8 + 3.1 * rows), layout="constrained", squeeze=False)
    for line, ranks in zip(grid, result["ranks"], strict=True):
        for axes, kind in zip(line, KINDS, strict=True):
            cells = [cell for cell in result["cells"] if cell["ranks"] == ranks and cell["kind"] == kind]
            _bars(axes, cells)
            axes.set_title(f"T = {ranks}: {KINDS[kind]}", loc="left", fontweight="bold", fontsize=11)
    for axes in grid[-1]:
        axes.set_xlabel("us until every rank has the turn's input; median, quartiles")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "distribute.png", folder / "distribute.svg"]
    plt.rcParams["svg.hashsalt"] = "distribute"  # the same samples give the same file
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return [str(path) for path in paths]


def _bars(axes: Axes, cells: list[dict[str, Any]]) -> None:
    for y, cell in enumerate(cells):
        ends = []
        for name, colour, label, offset in (
            ("wall", ENGINE, "in the engine", -0.27),
            ("floor", FLOOR, "bare mechanism", 0.0),
            ("floor_busy", BUSY, "mechanism between ranks as busy as those that plan", 0.27),
        ):
            low, median, high = np.percentile(np.concatenate(cell[name]), (25, 50, 75))
            axes.barh(y + offset, median, height=0.25, color=colour, label=label if y == 0 else None)
            axes.plot((low, high), (y + offset,) * 2, color="black", linewidth=1)
            ends.append(high)
        limit = AT_MOST * float(np.median(np.concatenate(cell["floor"])))
        axes.plot((limit, limit), (y - 0.4, y + 0.4), color="black", linestyle=":", label=_limit(y))
        axes.annotate(
            f"{shown(cell['ratio'])}\nbusy {shown(cell['ratio_busy'])}",
            (max(*ends, limit), y),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(cells)), [f"{cell['stage']}\n{cell['mechanism']}" for cell in cells], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _limit(y: int) -> str | None:
    return f"{AT_MOST:g} times the bare one" if y == 0 else None
