"""A/A: what `bench null` saw between arms that are alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from report.cautions import null_constants, null_judged
from report.pictures.forest import finish
from report.pictures.style import WIDTH, Picture, save
from report.words import interval_words

ROW_IN = 0.055
CAPTION = (
    "Every stage with {constants} constants against itself: each line is the {interval} of a ratio of two "
    "copies of one arm, its dot the median; lines of one figure stand together, sorted. A grey interval holds 1, as 85 "
    "to 99% of them should; an orange, thicker one does not: a difference where there is none. How wide they are is "
    "how small a difference this machine can show."
)


def draw(folder: Path, result: dict[str, Any], source: str) -> Picture:
    """`result`: of `bench null`."""
    intervals = null_judged(result)
    metrics = list(dict.fromkeys(one["metric"] for one in intervals))
    rows = len(intervals) + 3 * len(metrics)
    figure, axes = plt.subplots(figsize=(WIDTH, rows * ROW_IN + 1), layout="constrained")
    y, middles = 0, []
    for metric in metrics:
        group = sorted((one for one in intervals if one["metric"] == metric), key=lambda one: one["median"])
        for one in group:
            holds = one["low"] <= 1 <= one["high"]
            colour, width = ("#8a8a8a", 1.2) if holds else ("#d55e00", 2.2)
            axes.plot([one["low"], one["high"]], [y, y], color=colour, linewidth=width)
            axes.plot(one["median"], y, "o", color=colour, markersize=2.5)
            y += 1
        middles.append(y - (len(group) + 1) / 2)
        y += 3
    axes.set_yticks(middles, metrics)
    axes.set_ylim(y - 2, -2)
    axes.set_xlabel("ratio of an arm to itself", fontsize=9)
    finish(axes)
    caption = CAPTION.format(
        constants=null_constants(result), interval=interval_words({len(one["pairs"]) for one in intervals})
    )
    return save(figure, folder, "bench-null", "Arms that are alike", caption, source, 0)
