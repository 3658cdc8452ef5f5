"""The picture of `bench startup`: a bar for each arm, those of the stages made of their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt  # noqa: E402, the backend must be chosen first

from experiments.bench.startup import ONE, PARTS, TARGETS, TWO  # noqa: E402

COLOURS = ("#cccccc", "#56b4e9", "#999999", "#f0e442", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#d55e00")


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write startup.png and startup.svg; returns their paths."""
    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    arms = list(result["samples"])
    one = float(np.median(result["samples"][ONE]))
    for y, arm in enumerate(arms):
        total = float(np.median(result["samples"][arm]))
        if arm in (ONE, TWO):
            axes.barh(y, total, color="#dddddd", edgecolor="black", linewidth=0.5)
        else:
            left = 0.0
            for part, colour in zip(PARTS, COLOURS, strict=True):
                width = float(np.median([parts[part] for parts in result["parts"][arm]]))
                axes.barh(y, width, left=left, color=colour, label=part if arm == arms[2] else None)
                left += width
            total = max(total, left)
        axes.annotate(
            f"{np.median(result['samples'][arm]):.2f} s", (total, y), (5, 0), textcoords="offset points", va="center"
        )
        if arm in TARGETS:
            axes.plot([TARGETS[arm] * one] * 2, [y - 0.45, y + 0.45], color="black", linewidth=2)
            axes.annotate(
                f"target, {TARGETS[arm]:g} imports",
                (TARGETS[arm] * one, y + 0.42),
                (4, 0),
                textcoords="offset points",
                va="bottom",
                fontsize=8,
            )
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(right=max(axes.get_xlim()[1], 1.2 * max(TARGETS.values()) * one))  # room for the targets' names
    axes.set_xlabel("seconds since before the main process's interpreter started, median")
    axes.set_title("Start to first token, two ranks on `tiny`", loc="left", fontweight="bold")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="on the way of the last rank")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "startup.png", folder / "startup.svg"]
    plt.rcParams["svg.hashsalt"] = "startup"  # the same samples give the same file
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return [str(path) for path in paths]
