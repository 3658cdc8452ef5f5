"""The picture of `bench mechanisms`: cost against the size of a message, and against the number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from experiments.bench.figures import bare_frame, curve, save
from experiments.bench.mechanism_payloads import SIZES
from experiments.bench.rounds import medians
from report.pictures.style import plt

CAPTION = (
    "What it costs to bring a list of requests to every rank by each mechanism, with no engine around it, on "
    "logarithmic scales whose ticks name their unit: wall time of a step (left) and CPU time of all processes "
    "(right). Upper row: a request with an image, against its size; lower row: 16 requests of 512 tokens, against "
    "the number of ranks T. A point is the median of the rounds (7 unless the command says otherwise) of a "
    "round's median step; the band is its 95% interval, of fewer than 6 rounds their range."
)
# A colour for each family, none of which is a stage's; within a family the older has the dashes, and each its marker.
STYLES = {
    "rpyc-reference": ("#8c510a", "--", "o"),
    "rpyc-value": ("#8c510a", "-", "o"),
    "gloo-list": ("#5e3c99", "--", "s"),
    "gloo-buffer": ("#5e3c99", ":", "s"),
    "gloo-msgpack": ("#5e3c99", "-", "s"),
    "zmq-tcp": ("#e6ab02", "--", "^"),
    "zmq-ipc": ("#e6ab02", "-", "^"),
    "queue": ("#cc79a7", "--", "v"),
    "pipe": ("#cc79a7", "-", "v"),
    "socket-call": ("#888888", "--", "D"),
    "socket": ("#888888", "-", "D"),
    "shm": ("#000000", "-", "*"),
}
EXPLANATION = """One step: the driver has a list of requests,
then every rank has it as Python objects.

rpyc and socket-call: the driver stands beside
T ranks, and waits for rank 0's answer.
The others: the driver is rank 0, and sends to
the T-1 others; so they have nothing at T = 1.

Wall time: handing over until the last rank has
the list (or the answer is back).
CPU time: user and system, of all processes,
with a pause of 1 ms after each step, in which
gloo's threads may spin.

Points: medians of the rounds.
Bands: their 95% intervals."""


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """Write mechanisms.png and mechanisms.svg; returns their paths."""
    figure, grid = plt.subplots(2, 3, figsize=(17, 10), layout="constrained", width_ratios=(3, 3, 1.6))
    sized = [cell for cell in result["cells"] if cell["payload"] in SIZES]
    several = [cell for cell in result["cells"] if cell["payload"] == "16"]
    at = f", T = {sized[0]['ranks']}" if sized else ""
    for axes, name in zip(grid[0], ("wall", "cpu"), strict=False):
        _curves(axes, sized, name, lambda cell: SIZES[cell["payload"]])
        axes.set_title(f"A request with an image, {_name(name)}{at}", loc="left", fontweight="bold")
        axes.set_xlabel("bytes of the image")
        axes.set_xticks(list(SIZES.values()), list(SIZES))
    for axes, name in zip(grid[1], ("wall", "cpu"), strict=False):
        _curves(axes, several, name, lambda cell: cell["ranks"])
        axes.set_title(f"16 requests of 512 tokens, {_name(name)}", loc="left", fontweight="bold")
        axes.set_xlabel("T, number of ranks")
        axes.set_xticks(result["ranks"], [str(count) for count in result["ranks"]])
    _legend(grid[0, 2], result["what"])
    grid[1, 2].axis("off")
    grid[1, 2].annotate(EXPLANATION, (0, 1), xycoords="axes fraction", va="top", fontsize=10, linespacing=1.4)
    return save(figure, folder, "mechanisms")


def _name(name: str) -> str:
    return "wall time" if name == "wall" else "CPU time of all processes"


def _curves(axes: Axes, cells: list[dict[str, Any]], name: str, x: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for mechanism, (colour, line, marker) in STYLES.items():
        points = sorted((x(cell), medians(cell[name])) for cell in cells if cell["mechanism"] == mechanism)
        if points:
            curve(axes, points, color=colour, linestyle=line, marker=marker, markersize=5)
    axes.set_ylabel(f"{_name(name)} per step, unit as marked")
    axes.yaxis.set_major_formatter(_shown_time)
    axes.grid(alpha=0.25)
    axes.xaxis.set_minor_locator(NullLocator())
    bare_frame(axes)


def _shown_time(microseconds: float, _: int) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:g} {unit}"
    return f"{microseconds:g} \u00b5s"


def _legend(axes: Axes, what: dict[str, str]) -> None:
    axes.axis("off")
    for name, (colour, line, marker) in STYLES.items():
        if name in what:
            axes.plot([], [], color=colour, linestyle=line, marker=marker, markersize=5, label=name)
    axes.legend(loc="upper left", frameon=False, fontsize=10, handlelength=3.5, title="mechanism", alignment="left")
