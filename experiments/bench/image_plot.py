"""The picture of `bench image`: time and CPU time against the size of the image, for each stage and constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt  # noqa: E402, the backend must be chosen first

PANELS = {
    "whole": "Hand-over until every rank has it",
    "distribute": "Of it: from rank 0 or the router to every rank",
    "cpu": "CPU time of all processes, to the token",
}
COLOURS = {"rpyc": "#d55e00", "broadcast": "#0072b2", "peer": "#009e73"}
LINES = {"era": ("--", "s"), "level": ("-", "o")}


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write image.png and image.svg; returns their paths."""
    figure, grid = plt.subplots(1, 3, figsize=(16, 5.2), layout="constrained", sharey=True)
    sizes = {name: nbytes for name, nbytes in result["sizes"].items() if name != "hash"}
    for axes, (part, title) in zip(grid, PANELS.items(), strict=True):
        for stage in result["stages"]:
            for constants, (line, marker) in LINES.items():
                points = [
                    (sizes[cell["size"]], float(np.median(np.concatenate(cell[part]))) * 1e3)
                    for cell in result["cells"]
                    if (cell["stage"], cell["constants"]) == (stage, constants) and cell["size"] in sizes
                ]
                label = f"{stage}, {constants}" if part == "whole" else None
                axes.plot(*zip(*points, strict=True), color=COLOURS[stage], ls=line, marker=marker, ms=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlabel("bytes of the image")
        axes.set_xticks(list(sizes.values()), list(sizes), rotation=45, ha="right")
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g} ms"))
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(result["stages"]) * 2, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "image.png", folder / "image.svg"]
    plt.rcParams["svg.hashsalt"] = "image"  # the same samples give the same file
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return [str(path) for path in paths]
