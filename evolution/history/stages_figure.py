"""The three process models side by side: one replica above, two below. TP is 2 everywhere."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evolution.history.drawing import GREY, INK, Box, Panel
from evolution.history.trees import MODELS, ProcessModel, Sizes
from report.pictures.style import STAGES

BY_FIRST = {model.releases.split()[0]: model for model in MODELS}
SIDE = {"main": (0.2, 8.5, 3.6, 1.3), "detokenizer": (6.2, 8.5, 3.6, 1.3)}
RANK_LEFT, RANK_RIGHT = (0.2, 1.2, 4.3, 2.2), (5.5, 1.2, 4.3, 2.2)
DISPATCHER = (0.2, 5.3, 3.6, 1.3)
FOUR = [(0.2, 0.9, 2.1, 1.7), (2.6, 0.9, 2.1, 1.7), (5.3, 0.9, 2.1, 1.7), (7.7, 0.9, 2.1, 1.7)]
REPLICAS = [(0.0, 0.2, 4.9, 2.65), (5.1, 0.2, 4.9, 2.65)]


def draw() -> Figure:
    figure, grid = plt.subplots(2, 3, figsize=(12.6, 8.2))
    figure.subplots_adjust(left=0.02, right=0.98, top=0.88, bottom=0.05, hspace=0.2, wspace=0.1)
    columns = (
        ("rpyc", "The router calls each rank", "0.1.5", one_router, "0.1.17", two_routers),
        ("broadcast", "Rank 0 takes the loop, and broadcasts", "0.2.0", one_controller, "0.2.0", two_controllers),
        ("peer", "All ranks are alike", "0.3.3.post1", one_peer, "0.3.3.post1", two_peers),
    )
    for column, (stage, title, first, one, second, two) in enumerate(columns):
        _panel(grid[0, column], one, STAGES[stage].colour, BY_FIRST[first], Sizes(2, 1))
        _panel(grid[1, column], two, STAGES[stage].colour, BY_FIRST[second], Sizes(2, 2))
        left = grid[0, column].get_position().x0
        figure.text(left, 0.95, title, fontsize=13, fontweight="bold", color=STAGES[stage].colour)
    words = (
        "coloured: the middle corner, which changed; grey: what did not. Each box is a process; every rank schedules."
    )
    figure.text(0.02, 0.012, words, fontsize=9, color=INK)
    return figure


def _panel(axes: Axes, paint: Callable[[Panel, str], None], colour: str, model: ProcessModel, sizes: Sizes) -> None:
    panel = Panel(axes)
    panel.box("main", SIDE["main"], "main\nHTTP, tokenizer")
    panel.box("detokenizer", SIDE["detokenizer"], "detokenizer")
    panel.arrow("detokenizer", "main", "text")
    paint(panel, colour)
    replicas = "1 replica" if sizes.dp == 1 else f"{sizes.dp} replicas"
    count = len(model.tree(sizes).walk())
    panel.axes.set_title(f"{model.releases}, {replicas}: {count} processes", fontsize=10, loc="left", color=INK)


def one_router(panel: Panel, colour: str) -> None:
    panel.box("router", (3.0, 5.3, 4.0, 1.4), "router", colour)
    panel.box("rank 0", RANK_LEFT, "rank 0: rpyc server\nscheduler, model", colour)
    panel.box("rank 1", RANK_RIGHT, "rank 1: rpyc server\nscheduler, model", colour)
    panel.arrow("main", "router", "ZMQ")
    panel.arrow("router", "detokenizer", "ZMQ")
    panel.arrow("router", "rank 0", "call step", colour, bend=0.3, shift=(-0.75, 0.1))
    panel.arrow("rank 0", "router", "answer", colour, bend=0.3, line="--", shift=(0.6, -0.1))
    panel.arrow("router", "rank 1", "call step", colour)


def two_routers(panel: Panel, colour: str) -> None:
    panel.frame(
        (1.4, 4.2, 7.2, 3.1),
        "controller: one process, a queue for each thread",
        colour,
        "-",
        top=True,
    )
    panel.boxes["controller"] = Box(1.4, 4.2, 7.2, 3.1)
    for index, x in ((0, 1.8), (1, 5.2)):
        panel.box(f"thread {index}", (x, 4.7, 3.0, 1.4), f"thread of\nreplica {index}", colour)
    _ranks(panel, colour, "rpyc server")
    panel.arrow("main", "controller", "ZMQ")
    panel.arrow("controller", "detokenizer", "ZMQ")
    for index in range(4):
        panel.arrow(f"thread {index // 2}", f"rank {index}", "call" if index in (1, 3) else "", colour)


def one_controller(panel: Panel, colour: str) -> None:
    panel.box("rank 0", (0.2, 3.7, 4.3, 2.9), "control process\n= rank 0\nloop, scheduler, model", colour)
    panel.box("rank 1", RANK_RIGHT, "rank 1, its child\nscheduler, model", colour)
    panel.arrow("main", "rank 0", "ZMQ")
    panel.arrow("rank 0", "detokenizer", "ZMQ")
    panel.arrow("rank 0", "rank 1", "gloo", colour)


def two_controllers(panel: Panel, colour: str) -> None:
    panel.box("controller", DISPATCHER, "ControllerMulti", colour)
    _ranks(panel, colour, "control")
    panel.arrow("main", "controller", "ZMQ")
    panel.arrow("controller", "rank 0", "mp.Queue", colour, shift=(-0.2, 0.0))
    panel.arrow("controller", "rank 2", "mp.Queue", colour, at=0.3)
    _broadcasts(panel, colour)


def one_peer(panel: Panel, colour: str) -> None:
    panel.box("rank 0", (0.2, 2.6, 4.3, 2.4), "rank 0, main's child\nscheduler, model", colour)
    panel.box("rank 1", (5.5, 2.6, 4.3, 2.4), "rank 1, main's child\nscheduler, model", colour)
    panel.arrow("main", "rank 0", "ZMQ")
    panel.arrow("rank 0", "detokenizer", "ZMQ")
    panel.arrow("rank 0", "rank 1", "gloo", colour)


def two_peers(panel: Panel, colour: str) -> None:
    panel.box("controller", DISPATCHER, "DP controller", colour)
    _ranks(panel, colour, "scheduler")
    panel.arrow("main", "controller", "ZMQ")
    panel.arrow("controller", "rank 0", "ZMQ", colour)
    panel.arrow("controller", "rank 2", "ZMQ", colour, at=0.3)
    _broadcasts(panel, colour)


def _ranks(panel: Panel, colour: str, what: str) -> None:
    """Ranks 0 and 1 of replica 0 are rank 0 and 1 here, those of replica 1 rank 2 and 3."""
    for index, where in enumerate(FOUR):
        first = what if index % 2 == 0 or what != "control" else "model"
        panel.box(f"rank {index}", where, f"rank {index % 2}\n{first}", colour)
    for replica, where in enumerate(REPLICAS):
        panel.frame(where, f"replica {replica}", GREY)


def _broadcasts(panel: Panel, colour: str) -> None:
    """Within a replica; and each replica's rank 0 sends to the detokenizer."""
    panel.arrow("rank 0", "rank 1", "", colour)
    panel.arrow("rank 2", "rank 3", "", colour)
    panel.arrow("rank 0", "detokenizer", "ZMQ", at=0.7)
    panel.arrow("rank 2", "detokenizer", "ZMQ", at=0.5)
