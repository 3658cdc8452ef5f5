"""The picture of `bench startup`: a bar for each arm, those of the stages made of their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.bench.figures import PALE, bare_frame, save
from experiments.bench.rounds import median, spread
from experiments.bench.startup import ONE, PARTS, TARGETS, TWO
from report.pictures.style import plt

CAPTION = (
    "Seconds from before the interpreter starts until torch is imported (the two upper bars), or until an engine "
    "of two ranks has given its first token. A bar's length is the median of the starts of an arm (9 unless the "
    "command says otherwise), its bracket the 95% interval of that median. The coloured parts are medians too, on "
    "the way of the rank that was ready last, so that they add up to about the bar. A thick upright line is the "
    "aim: so many times one import."
)
# Of PARTS, in their order; none is a stage's.
COLOURS = ("#cccccc", "#9ecae1", "#999999", "#f0e442", "#c99700", "#5e3c99", "#8c510a", "#cc79a7", "#444444")


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write startup.png and startup.svg; returns their paths."""
    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    arms = list(result["samples"])
    one = median(result["samples"][ONE])
    for y, arm in enumerate(arms):
        found = spread(result["samples"][arm])
        total = found["median"]
        if arm in (ONE, TWO):
            axes.barh(y, total, color=PALE, edgecolor="black", linewidth=0.5)
        else:
            left = 0.0
            for part, colour in zip(PARTS, COLOURS, strict=True):
                width = median([parts[part] for parts in result["parts"][arm]])
                axes.barh(y, width, left=left, color=colour, label=part if arm == arms[2] else None)
                left += width
            total = max(total, left)
        ends = [[found["median"] - found["low"]], [found["high"] - found["median"]]]
        axes.errorbar(found["median"], y, xerr=ends, fmt="none", color="black", capsize=4, linewidth=1.2)
        text = f"{found['median']:.2f} s [{found['low']:.2f}, {found['high']:.2f}]"
        right = max(total, found["high"], TARGETS.get(arm, 0) * one)  # of all that is drawn in this row
        axes.annotate(text, (right, y), (5, 0), textcoords="offset points", va="center")
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
    axes.set_xlim(right=max(axes.get_xlim()[1], 1.4 * max(TARGETS.values()) * one))  # room for the targets' names
    axes.set_xlabel("seconds since before the main process's interpreter started: median, 95% interval")
    axes.set_title("Start to first token, two ranks on the model tiny", loc="left", fontweight="bold")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="on the way of the last rank")
    bare_frame(axes)
    return save(figure, folder, "startup")
