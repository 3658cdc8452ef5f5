"""What `bench mechanisms` prints: counts first, then times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from experiments.bench.compare import shown
from experiments.bench.mechanism_payloads import LISTS, REQUESTS, SIZES

Cell = dict[str, Any]


def show(result: dict[str, Any]) -> None:
    console = Console()
    for ranks in result["ranks"]:
        cells = {(c["mechanism"], c["payload"]): c for c in result["cells"] if c["ranks"] == ranks}
        title = f"T = {ranks}: {{}}, for 0, 1 and 16 requests of 512 tokens"
        console.print(_table(title.format("counts of a step"), cells, list(REQUESTS), _counts()))
        console.print(_table(title.format("microseconds of a step"), cells, list(REQUESTS), _times()))
        sizes = [size for size in SIZES if any(payload == size for _, payload in cells)]
        if sizes:
            for name, cell in _times(1000).items():
                console.print(_table(f"T = {ranks}: {name}, ms, for a request with an image", cells, sizes, {"": cell}))
    console.print(
        f"the driver pauses {result['pace_ms']:g} ms after each step; without sending, that costs"
        f" {result['pause_cpu']:.0f} us of CPU time, which is in every figure of CPU time above",
        soft_wrap=True,
    )
    _show_yardsticks(console, result["yardsticks"])
    for path in result.get("pictures", []):
        console.print(f"picture: {path}", soft_wrap=True)


def _counts() -> dict[str, Callable[[Cell], str]]:
    def of(name: str) -> Callable[[Cell], str]:
        return lambda cell: f"{cell['counts'][name]:g}" if name != "bytes" else f"{cell['counts'][name]:.0f}"

    return {"msgs": of("messages"), "bytes": of("bytes"), "enc": of("encodings"), "dec": of("decodings")}


def _times(unit: float = 1) -> dict[str, Callable[[Cell], str]]:
    """unit: us"""

    def digits(value: float) -> str:
        return f"{value:.0f}" if unit == 1 or value >= 100 else f"{value:.3g}"

    return {
        "wall p50": lambda cell: digits(np.median(np.concatenate(cell["wall"])) / unit),
        "p95": lambda cell: digits(np.percentile(np.concatenate(cell["wall"]), 95) / unit),
        "CPU": lambda cell: digits(np.median(cell["cpu"]) / unit),
    }


def _table(title: str, cells: dict, payloads: list[str], columns: dict[str, Callable[[Cell], str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("", no_wrap=True)
    for payload in payloads:
        for number, name in enumerate(columns):
            heading = payload if number == 0 else ""
            table.add_column(f"{heading}\n{name}" if name else heading, justify="right")
    for mechanism in dict.fromkeys(name for name, _ in cells):
        row = [mechanism]
        for payload in payloads:
            cell = cells[mechanism, payload]
            row += [show_cell(cell) for show_cell in columns.values()]
        table.add_row(*row)
    return table


def _show_yardsticks(console: Console, yardsticks: list[dict[str, Any]]) -> None:
    if not yardsticks:
        console.print("no yardsticks: they need T = 2, and `socket` or `socket-call` among the mechanisms")
        return
    table = Table(title="T = 2: wall time as a multiple of a raw socket's; median of rounds [95% interval]")
    for column in ("", "requests", "multiple", "of", "yardstick", ""):
        table.add_column(column, justify="right" if column in ("multiple", "yardstick") else "left")
    for one in yardsticks:
        payload = "16, ids in lists, pickled" if one["payload"] == LISTS else one["payload"]
        word = "within 25%" if one["holds"] else f"{one['ratio']['median'] / one['expected']:.2f} times it"
        row = (one["mechanism"], payload, shown(one["ratio"]), one["to"], f"{one['expected']:g}", word)
        table.add_row(*row)
    console.print(table)
