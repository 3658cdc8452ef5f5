"""The story in six panels, at TP 2. Coloured: what the panel's change brought or moved."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from evolution.history import data
from evolution.history.drawing import GREY, INK, Panel
from report.pictures.style import STAGES

RPYC, BROADCAST, PEER = (STAGES[name].colour for name in ("rpyc", "broadcast", "peer"))
MIDDLE = (3.2, 6.6, 3.6, 1.6)
LEFT, RIGHT = (0.8, 2.4, 3.6, 1.9), (5.6, 2.4, 3.6, 1.9)
SMALL = [(0.1, 1.6, 2.2, 1.6), (2.6, 1.6, 2.2, 1.6), (5.2, 1.6, 2.2, 1.6), (7.7, 1.6, 2.2, 1.6)]
GONE = {"fontsize": 9, "color": GREY, "ha": "center", "va": "center", "style": "italic"}


def draw() -> Figure:
    figure, grid = plt.subplots(2, 3, figsize=(12.6, 8.6))
    figure.subplots_adjust(left=0.02, right=0.98, top=0.92, bottom=0.02, hspace=0.22, wspace=0.08)
    panels: tuple[tuple[str, str, Callable[[Panel], None]], ...] = (
        ("1  January 2024, 0.1.5", "A router calls every rank, each turn.", router),
        ("2  27 May, #480", "Replicas: a thread each, in one process.", threads),
        ("3  18 July, #646", "rpyc goes. Rank 0 takes the loop and tells the others.", broadcast),
        ("4  29 July, #807", "The files move. No process does.", files),
        ("5  29 September, #1534 and #1538", "All ranks are alike. Replicas are gone.", peers),
        ("6  11 October, #1635", "Replicas are back, behind a dispatcher.", controller),
    )
    for axes, (when, what, paint) in zip(grid.flat, panels, strict=True):
        panel = Panel(axes, size=8.5)
        panel.frame((-0.1, 0.05, 10.2, 9.9), "", "#cccccc", "-")
        axes.text(0.2, 0.85, what, fontsize=9.5, color=INK, va="center")
        axes.set_title(when, fontsize=11, fontweight="bold", loc="left", color=INK)
        paint(panel)
    return figure


def router(panel: Panel) -> None:
    panel.box("router", MIDDLE, "router", RPYC)
    panel.box("rank 0", LEFT, "rank 0\nscheduler, model", RPYC)
    panel.box("rank 1", RIGHT, "rank 1\nscheduler, model", RPYC)
    panel.arrow("router", "rank 0", "rpyc", RPYC)
    panel.arrow("router", "rank 1", "rpyc", RPYC)


def threads(panel: Panel) -> None:
    panel.frame((1.0, 5.6, 8.0, 3.6), "controller", GREY, "-", top=True)
    for index, x in ((0, 1.6), (1, 5.4)):
        panel.box(f"thread {index}", (x, 6.2, 3.0, 1.8), f"thread\nreplica {index}", RPYC)
    for index, where in enumerate(SMALL):
        panel.box(f"rank {index}", where, f"rank {index % 2}", RPYC if index > 1 else GREY)
        panel.arrow(f"thread {index // 2}", f"rank {index}", "rpyc" if index in (0, 3) else "", GREY)


def broadcast(panel: Panel) -> None:
    panel.axes.text(5.0, 8.6, "(no router)", **GONE)
    panel.box("rank 0", (0.6, 3.0, 3.9, 4.2), "control process\n= rank 0\n\nloop\nscheduler, model", BROADCAST)
    panel.box("rank 1", (5.9, 3.0, 3.5, 2.2), "rank 1\nscheduler, model")
    panel.arrow("rank 0", "rank 1", "gloo", BROADCAST)


def files(panel: Panel) -> None:
    """managers/ before and after, as the wheels have it."""
    for x, version, colour in ((0.1, "0.2.0", GREY), (6.2, "0.2.8", BROADCAST)):
        names = "\n".join(f" {name}" for name in data.listings()[version].files)
        text = f"{version}\nmanagers/\n{names}"
        panel.axes.text(x, 5.6, text, fontsize=6.8, family="monospace", color=colour, va="center", linespacing=1.3)
    panel.axes.annotate("", (6.0, 5.6), (5.1, 5.6), arrowprops={"arrowstyle": "-|>", "color": BROADCAST})


def peers(panel: Panel) -> None:
    panel.axes.text(5.0, 8.6, "(no controller)", **GONE)
    panel.box("rank 0", (0.8, 3.4, 3.4, 3.4), "rank 0\n\nscheduler.py\ntp_worker.py", PEER)
    panel.box("rank 1", (5.8, 3.4, 3.4, 3.4), "rank 1\n\nscheduler.py\ntp_worker.py", PEER)
    panel.arrow("rank 0", "rank 1", "gloo", GREY)


def controller(panel: Panel) -> None:
    panel.box("controller", (3.0, 7.0, 4.0, 1.6), "DP controller", PEER)
    for index, where in enumerate(SMALL):
        panel.box(f"rank {index}", where, f"rank {index % 2}\nscheduler", GREY)
    for index in (0, 2):
        panel.arrow("controller", f"rank {index}", "ZMQ", PEER)
        panel.arrow(f"rank {index}", f"rank {index + 1}", "", GREY)
