"""`history eras`: the constants of each version, beside those that all stages run with by default."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from common.constants import explained
from evolution.stages import STAGES, find_stage

NOTES = (
    "Never changed: admission, cache, eviction, retraction, and which tokens come out.",
    "Era channels carry pickles of the messages of this project: token ids are bytes in them, and were lists then.",
    "What a turn of several decode steps has to say goes to the detokenizer as one message; 0.1.5 sent one per step.",
    "Processes are spawned (until 0.3.2 they were forked) and watched; ports are free ones (0.1.5 scanned from 10000).",
)


def print_eras(console: Console) -> None:
    for stage in STAGES:
        module = find_stage(stage)[1]
        console.print(eras_table(stage, [module.LEVEL, *module.ERAS]))
    for note in NOTES:
        console.print(note, style="dim", soft_wrap=True)


def eras_table(stage: str, versions: list[Any]) -> Table:
    """A row for each constant, a column for each version; what differs from level stands out."""
    table = Table(title=f"{stage}: constants", title_justify="left", show_lines=True)
    table.add_column("constant", overflow="fold")
    for constants in versions:
        table.add_column(constants.version, overflow="fold")
    table.add_column("what it does", overflow="fold", ratio=1)
    for rows in zip(*(explained(constants) for constants in versions), strict=True):
        name, level, what = rows[0]
        values = [show(value) if value == level else f"[bold]{show(value)}[/bold]" for _, value, _ in rows]
        if name != "version":
            table.add_row(name, *values, what)
    return table


def show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
