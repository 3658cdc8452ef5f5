"""The picture of `bench distribute`: for each stage the engine's time beside its mechanism's, and their ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments.bench.distribute import AT_MOST
from experiments.bench.figures import GREY, INK, PALE, bare_frame, save
from experiments.bench.rounds import medians, spread
from experiments.intervals import shown
from report.pictures.style import plt

CAPTION = (
    "Microseconds until every rank has a turn's input: in a real engine (dark), and by the bare mechanism that it "
    "uses, between ranks that do nothing (pale) and between ranks that burn what planning takes (grey); T is the "
    "number of ranks. A bar is the median of the rounds' medians (7 unless the command says otherwise), its "
    "bracket the 95% interval of that, of fewer than 6 rounds their range. Beside it stands the ratio of the "
    "engine to the bare mechanism, then to the busy one: median [95% interval] of the rounds. The dotted line is "
    "the aim, a multiple of the bare mechanism."
)
KINDS = {"0": "decode turn of 16, nothing new", "16": "16 requests of 512 ids arrive"}
ARMS = (
    ("wall", INK, "in the engine", -0.27),
    ("floor", PALE, "bare mechanism", 0.0),
    ("floor_busy", GREY, "mechanism between ranks as busy as those that plan", 0.27),
)


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write distribute.png and distribute.svg; returns their paths."""
    rows = len(result["ranks"])
    figure, grid = plt.subplots(rows, 2, figsize=(13, 0.8 + 3.4 * rows), layout="constrained", squeeze=False)
    for line, ranks in zip(grid, result["ranks"], strict=True):
        for axes, kind in zip(line, KINDS, strict=True):
            cells = [cell for cell in result["cells"] if cell["ranks"] == ranks and cell["kind"] == kind]
            _draw_bars(axes, cells)
            axes.set_title(f"T = {ranks}: {KINDS[kind]}", loc="left", fontweight="bold", fontsize=11)
            axes.set_xlabel("microseconds until every rank has the input: median, 95% interval", fontsize=9)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return save(figure, folder, "distribute")


def _draw_bars(axes: Axes, cells: list[dict[str, Any]]) -> None:
    for y, cell in enumerate(cells):
        ends = []
        for name, colour, label, offset in ARMS:
            found = spread(medians(cell[name]))
            axes.barh(y + offset, found["median"], height=0.25, color=colour, label=label if y == 0 else None)
            bracket = [[found["median"] - found["low"]], [found["high"] - found["median"]]]
            axes.errorbar(
                found["median"], y + offset, xerr=bracket, fmt="none", color="#d62728", capsize=3, linewidth=1
            )
            ends.append(found["high"])
        limit = AT_MOST * spread(medians(cell["floor"]))["median"]
        label = f"{AT_MOST:g} times the bare one" if y == 0 else None
        axes.plot((limit, limit), (y - 0.4, y + 0.4), color="black", linestyle=":", label=label)
        axes.annotate(
            f"{shown(cell['ratio'])}\nto busy {shown(cell['ratio_busy'])}",
            (max(*ends, limit), y),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(cells)), [f"{cell['stage']}\n{cell['mechanism']}" for cell in cells], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    bare_frame(axes)
