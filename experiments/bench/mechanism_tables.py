"""What `bench mechanisms` prints: counts first, then times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from experiments.bench.mechanism_payloads import LISTS, REQUESTS, SIZES
from experiments.bench.rounds import median, pooled
from experiments.bench.verdicts import in_words
from experiments.intervals import shown

YARDSTICK_SOCKET = {"0": 13, LISTS: 338}  # us, at T = 2

Cells = dict[tuple[str, str], dict[str, Any]]  # (mechanism, payload) -> cell, of one T
Measure = Callable[[dict[str, Any]], float]  # us, of a cell

MEASURES: dict[str, Measure] = {
    "wall": lambda cell: median(pooled(cell["wall"])),
    "p95": lambda cell: float(np.percentile(pooled(cell["wall"]), 95)),
    "CPU": lambda cell: median(cell["cpu"]),
}


def show(result: dict[str, Any]) -> None:
    console = Console()
    for ranks in result["ranks"]:
        cells = {(c["mechanism"], c["payload"]): c for c in result["cells"] if c["ranks"] == ranks}
        title = f"T = {ranks}: {{}}, for 0, 1 and 16 requests of 512 tokens"
        console.print(_counts(title.format("counts of a step"), cells))
        console.print(_times(title.format("microseconds of a step"), cells, list(REQUESTS), MEASURES))
        sizes = [size for size in SIZES if any(payload == size for _, payload in cells)]
        for name in MEASURES if sizes else ():
            title = f"T = {ranks}: {name}, milliseconds of a step, for a request with an image"
            console.print(_times(title, cells, sizes, {name: MEASURES[name]}, unit=1000))
    console.print(
        f"the driver pauses {result['pace_ms']:g} ms after each step, and looks for the end of a step once in so long:"
        f" such a pause costs {result['pause_cpu']:.0f} us of CPU time, and a step's figures above hold one or more",
        soft_wrap=True,
    )
    _show_yardsticks(console, result["yardsticks"])
    _show_bare_socket(console, result)


def _new_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("", no_wrap=True)
    return table


def _mechanisms(cells: Cells) -> list[str]:
    return list(dict.fromkeys(name for name, _ in cells))


def _counts(title: str, cells: Cells) -> Table:
    """Encodings and decodings of 16 requests: those of one are as many."""
    columns = [(name, payload) for name in ("messages", "bytes") for payload in REQUESTS]
    columns += [("encodings", "16"), ("decodings", "16")]
    table = _new_table(title)
    for name, payload in columns:
        table.add_column(f"{name if payload == '0' or len(name) > 8 else ''}\n{payload}", justify="right")
    for mechanism in _mechanisms(cells):
        counts = [cells[mechanism, payload]["counts"][name] for name, payload in columns]
        table.add_row(mechanism, *(f"{count:.0f}" for count in counts))
    return table


def _times(title: str, cells: Cells, payloads: list[str], measures: dict[str, Measure], unit: float = 1) -> Table:
    """unit: us"""
    table = _new_table(title)
    for payload in payloads:
        for name in measures:
            table.add_column(f"{payload}\n{name}" if len(measures) > 1 else payload, justify="right")
    for mechanism in _mechanisms(cells):
        values = [measure(cells[mechanism, payload]) / unit for payload in payloads for measure in measures.values()]
        table.add_row(mechanism, *(f"{value:.0f}" if unit == 1 or value >= 100 else f"{value:.2g}" for value in values))
    return table


def _show_yardsticks(console: Console, yardsticks: list[dict[str, Any]]) -> None:
    if not yardsticks:
        console.print("no yardsticks: they need T = 2, and `socket` or `socket-call` beside others", soft_wrap=True)
        return
    table = _new_table("T = 2: wall time over a raw socket's, median of rounds [95% interval]; within 25%?")
    for column in ("requests", "over", "ratio", "yardstick", "verdict"):
        table.add_column(column, justify="right" if column in ("ratio", "yardstick") else "left", no_wrap=True)
    for one in yardsticks:
        away = f"{one['verdict']}: {one['ratio']['median'] / one['expected']:.2f}"
        word = one["verdict"] if one["verdict"] == "holds" else away
        ratio, expected = shown(one["ratio"]), f"{one['expected']:g}"
        table.add_row(one["mechanism"], one["payload"], one["to"], ratio, expected, word)
    console.print(table)
    console.print("yardsticks: " + in_words(one["verdict"] for one in yardsticks))
    console.print(f"{LISTS}: 16 requests with their ids in Python lists, pickled", soft_wrap=True)


def _show_bare_socket(console: Console, result: dict[str, Any]) -> None:
    """What the harness adds, and what this machine does."""
    walls = {c["payload"]: c["wall"] for c in result["cells"] if (c["mechanism"], c["ranks"]) == ("socket", 2)}
    bare = {name: median(pooled(rounds)) for name, rounds in result["bare_socket"].items()}
    for payload, theirs in YARDSTICK_SOCKET.items():
        here = f"{median(pooled(walls[payload])):.0f} us above, " if payload in walls else ""
        console.print(
            f"a raw socket's step, {payload}: {here}{bare[payload]:.0f} us in two bare processes before and after the"
            f" run; the yardsticks' took {theirs} us",
            soft_wrap=True,
        )
    console.print(
        f"the same bare step, 0: {bare['0, one core']:.0f} us with both processes on one core,"
        f" {bare['0, two cores']:.0f} us on two; which it is, the scheduler chooses for each mechanism",
        soft_wrap=True,
    )
