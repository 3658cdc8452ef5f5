"""The picture of `bench image`: time and CPU time against the size of the image, for each stage and constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, NullLocator

from experiments.bench.figures import bare_frame, curve, save
from experiments.bench.rounds import medians
from report.pictures.style import STAGES, plt

CAPTION = (
    "What one request with an image costs at two ranks, in milliseconds, against the size of the image, both on "
    "logarithmic scales: from handing it over in the main process until every rank has it (left), the part of "
    "that from rank 0 or the router on (middle), and the CPU time of all processes until the token is there "
    "(right). Solid lines are the constants that all stages share, dashed ones those of each stage's era. A point "
    "is the median of the rounds (7 unless the command says otherwise) of a round's median request; the band is "
    "its 95% interval, of fewer than 6 rounds their range."
)
PANELS = {
    "whole": "Hand-over until every rank has it",
    "distribute": "Of it: from rank 0 or the router to every rank",
    "cpu": "CPU time of all processes, to the token",
}
LINES = {"era": "--", "level": "-"}


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write image.png and image.svg; returns their paths."""
    figure, grid = plt.subplots(1, 3, figsize=(16, 5.2), layout="constrained", sharey=True)
    sizes = {name: nbytes for name, nbytes in result["sizes"].items() if name != "hash"}
    for axes, (part, title) in zip(grid, PANELS.items(), strict=True):
        for stage in result["stages"]:
            for constants, line in LINES.items():
                points = [
                    (sizes[cell["size"]], [1e3 * value for value in medians(cell[part])])
                    for cell in result["cells"]
                    if (cell["stage"], cell["constants"]) == (stage, constants) and cell["size"] in sizes
                ]
                label = f"{stage}, {constants}" if part == "whole" else None
                style = STAGES[stage]
                curve(axes, points, color=style.colour, ls=line, marker=style.marker, ms=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlabel("bytes of the image")
        axes.set_xticks(list(sizes.values()), list(sizes), rotation=45, ha="right")
        axes.set_ylabel("milliseconds")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid(alpha=0.25)
        bare_frame(axes)
    figure.legend(loc="outside lower center", ncols=len(result["stages"]) * 2, frameon=False)
    return save(figure, folder, "image")
