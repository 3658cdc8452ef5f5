"""The picture of `bench overlap`: TPOT and TTFT by the number of requests, with both loops.

`python -m experiments.bench.overlap_plot RESULT.json DIR` draws it again from a result file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt  # noqa: E402, the backend must be chosen first
from matplotlib.axes import Axes  # noqa: E402

from experiments.bench.overlap import ARMS, INPUT_LEN, OUTPUT_LEN  # noqa: E402

COLOURS = {"normal": "#d55e00", "overlap": "#0072b2"}
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
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    environment = result["environment"]
    figure.suptitle(
        f"peer stage on the simulated {environment['sim_profile']['name']}: the normal loop and --overlap."
        " Over the bars: overlap / normal, median and 95% interval of the pairs.",
        fontsize=10,
    )
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "overlap.png", folder / "overlap.svg"]
    plt.rcParams["svg.hashsalt"] = "overlap"  # the same samples give the same file
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return [str(path) for path in paths]


def _bars(axes: Axes, result: dict[str, Any], name: str) -> None:
    """Medians, with the middle half of the samples as a line."""
    sizes = list(result["samples"])
    places = np.arange(len(sizes))
    tops = np.zeros(len(sizes))
    for arm, shift in zip(ARMS, (-WIDTH / 2, WIDTH / 2), strict=True):
        samples = np.array([result["samples"][size][arm][name] for size in sizes]) * 1e3
        low, middle, high = np.percentile(samples, (25, 50, 75), axis=1)
        label = f"{arm} loop; the line: the middle half of the samples"
        axes.bar(places + shift, middle, WIDTH, color=COLOURS[arm], label=label)
        axes.errorbar(places + shift, middle, (middle - low, high - middle), fmt="none", color="#444444", capsize=3)
        tops = np.maximum(tops, high)
    for place, size in enumerate(sizes):
        ratio = result["sizes"][size]["ratios"][name]
        text = f"{ratio['median']:.2f}\n[{ratio['low']:.2f}, {ratio['high']:.2f}]"
        axes.annotate(text, (place, tops[place]), (0, 4), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(places, sizes)


if __name__ == "__main__":
    print(*draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])), sep="\n")
