"""What all pictures share: how stages and the parts of a turn look, and how a picture is written. Two of them differ in
more than colour (line, marker, hatch), so that they can be told apart in grey."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from common.tracing import DISTRIBUTE

matplotlib.rcParams["figure.constrained_layout.h_pad"] = 0.09  # inches
FOLDER = "pictures"
WIDTH = 9.6  # inches
PNG_DPI = 110


@dataclass(frozen=True)
class StageStyle:
    colour: str
    marker: str
    line: str


STAGES = {
    "rpyc": StageStyle("#d55e00", "o", "-."),
    "broadcast": StageStyle("#0072b2", "s", "--"),
    "peer": StageStyle("#009e73", "^", "-"),
}
OTHER_STAGE = StageStyle("#666666", "D", ":")

# (colour, hatch) of a part; the forward is grey, since it is not what is compared. No dots: in an SVG each is a path.
PARTS = {
    "recv_requests": ("#56b4e9", "----"),
    "distribute": ("#e69f00", ""),
    "wait_for_router": ("#fff7e6", "\\\\"),
    "wait_for_forward": ("#cfe3f5", "////"),
    "wait_for_plan": ("#f4f4f4", "----"),
    "process_input_requests": ("#f0e442", "||"),
    "get_next_batch_to_run": ("#8c6bb1", "////"),
    "prepare": ("#b5b5b5", "++++"),
    "forward": ("#dcdcdc", ""),
    "sample": ("#b5b5b5", "xxxx"),
    "process_batch_result": ("#cc79a7", "\\\\\\\\"),
    "send_output": ("#1f4e79", ""),
    "tokenize": ("#a6761d", "||||"),
    "detokenize": ("#66a61e", "xx"),
    "pacing_sleep": ("#f4f4f4", "||||"),
    "other": ("#808080", ""),
}


@dataclass(frozen=True)
class Picture:
    """`source`: the file that it was drawn from, relative to the page; `runs`: of how many runs. `svg`: its text, for
    the page."""

    name: str
    title: str
    caption: str
    source: str
    runs: int
    svg: str
    width: int  # CSS pixels

    @property
    def files(self) -> list[str]:
        return [f"{FOLDER}/{self.name}.{kind}" for kind in ("png", "svg")]


def stage_style(stage: str) -> StageStyle:
    return STAGES.get(stage, OTHER_STAGE)


def group_of(part: str) -> str:
    return "distribute" if part in DISTRIBUTE else part


def plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8.5)


def part_patches(names: set[str]) -> list[Patch]:
    """Of a legend, in the order of PARTS."""
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#555555", linewidth=0.5, label=name)
        for name, (colour, hatch) in PARTS.items()
        if name in names
    ]


def save(figure: Figure, folder: Path, name: str, title: str, caption: str, source: str, runs: int) -> Picture:
    """Writes folder/pictures/name.png and .svg; the same samples give the same files."""
    (folder / FOLDER).mkdir(exist_ok=True)
    with plt.rc_context({"svg.hashsalt": name, "hatch.linewidth": 0.6}):
        figure.savefig(folder / FOLDER / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / FOLDER / f"{name}.png", dpi=PNG_DPI)
    width = round(figure.get_figwidth() * 96)
    plt.close(figure)
    text = (folder / FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    return Picture(name, title, caption, source, runs, inline(text, name, title), width)


def inline(svg: str, name: str, title: str) -> str:
    """An SVG file's element, to stand in a page: no prolog, no metadata, ids that no other picture has, and its title
    for those who do not see it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return f'<svg role="img" aria-label="{html.escape(title)}"' + svg.removeprefix("<svg")


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two, about four of them and never fewer than two. `low` is above 0 and below `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = [tick for power in powers for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]
        if len(ticks) >= 3:
            return ticks[:: 1 + len(ticks) // 7]
    # So short a stretch that a logarithmic scale is nearly even: multiples of the largest step with three of them.
    power = math.floor(math.log10(high - low)) + 1
    while True:
        for digit in (5, 2, 1):
            step = float(f"{digit}e{power}")
            ticks = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) >= 3:
                return ticks
        power -= 1


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
