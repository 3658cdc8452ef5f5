"""The picture of `bench overlap`: TPOT and TTFT by the number of requests, with both loops.

`python -m experiments.bench.overlap_plot RESULT.json DIR` draws it again from a result file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.bench.figures import GREY, INK, bare_frame, save
from experiments.bench.overlap import ARMS, INPUT_LEN, OUTPUT_LEN
from experiments.bench.rounds import spread
from experiments.intervals import shown
from report.pictures.style import plt

CAPTION = (
    "The peer stage on the simulated accelerator, with its normal loop (grey) and with the one that plans the next "
    "turn while the forward runs (dark), for several numbers of requests at once. A bar is the median of all repeats, "
    "its line the interval of that. Over a pair of bars: overlap over normal, repeat by repeat; below 1 the overlap "
    "loop is faster. The black line is what the forward alone takes: above it lie scheduling, sampling and sending."
)
COLOURS = {"normal": GREY, "overlap": "#444444"}
WIDTH = 0.38


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write overlap.png and overlap.svg; returns their paths."""
    figure, (tpot, ttft) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    _bars(tpot, result, "tpot")
    for place, seconds in enumerate(result["predicted"].values()):
        label = "predicted forward: no loop can be faster" if place == 0 else None
        ends = [place - WIDTH - 0.05, place + WIDTH + 0.05]
        tpot.plot(ends, [seconds * 1e3] * 2, color="black", linewidth=2, label=label)
    tpot.set_title("Time per output token (TPOT)", loc="left", fontweight="bold")
    tpot.set_ylabel("milliseconds per token")
    _bars(ttft, result, "ttft")
    ttft.set_title("Time to first token (TTFT)", loc="left", fontweight="bold")
    ttft.set_ylabel("milliseconds")
    for axes in (tpot, ttft):
        axes.set_xlabel(f"requests at once, of {INPUT_LEN} tokens, {OUTPUT_LEN} tokens each")
        axes.legend(loc="upper left", frameon=False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_ylim(top=axes.get_ylim()[1] * 1.3)  # room for the legend
        bare_frame(axes)
    environment = result["environment"]
    figure.suptitle(
        f"peer stage on the simulated {environment['sim_profile']['name']}: the normal loop and --overlap."
        " Over the bars: overlap / normal.",
        fontsize=10,
    )
    return save(figure, folder, "overlap")


def _bars(axes: Axes, result: dict[str, Any], name: str) -> None:
    """Medians, with their intervals as lines."""
    sizes = list(result["samples"])
    places = np.arange(len(sizes))
    tops = np.zeros(len(sizes))
    for arm, shift in zip(ARMS, (-WIDTH / 2, WIDTH / 2), strict=True):
        found = [spread([1e3 * value for value in result["samples"][size][arm][name]]) for size in sizes]
        low, middle, high = (np.array([one[what] for one in found]) for what in ("low", "median", "high"))
        axes.bar(places + shift, middle, WIDTH, color=COLOURS[arm], label=f"{arm} loop")
        axes.errorbar(places + shift, middle, (middle - low, high - middle), fmt="none", color=INK, capsize=3)
        tops = np.maximum(tops, high)
    for place, size in enumerate(sizes):
        text = shown(result["sizes"][size]["ratios"][name]).replace(" [", "\n[")
        axes.annotate(text, (place, tops[place]), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(places, sizes)


if __name__ == "__main__":
    print(*draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])), sep="\n")
