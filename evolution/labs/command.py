"""`labs`: list the labs, grade one, release them to students."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evolution.labs.catalog import LABS, all_labs, find_lab

WIDTH = 120  # of a table that goes into a file or a pipe


def labs_command(options: argparse.Namespace) -> int:
    if options.action in ("list", None):
        return list_labs()
    if options.action == "grade":
        return grade_lab(options)
    from evolution.labs.release import release

    return release(Path(options.out), options.force)


def list_labs() -> int:
    labs = all_labs()
    table = Table("lab", "title", "hours", "tasks and points", box=None, pad_edge=False)
    for lab in labs:
        points = ", ".join(f"{task.short} {task.points}" for task in lab.tasks)
        table.add_row(str(lab.number), lab.title, f"{lab.hours:g}", points)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    console.print(f"\nhandouts: {os.path.relpath(LABS)}/lab*/README.md", soft_wrap=True)
    return 0


def grade_lab(options: argparse.Namespace) -> int:
    """0 for all points, 1 for less. ValueError of one line for bad input, before anything runs."""
    from evolution.labs.grade import grade
    from evolution.labs.results import show, write
    from evolution.run import check_writable

    lab = find_lab(options.lab)
    task = lab.find_task(options.task) if options.task else None
    for path, option in ((options.json, "--json"), (options.junit, "--junit")):
        if path:
            check_writable(path, option)
    overlays = [Path(options.solution)] if options.solution else []
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    result = grade(lab, overlays, Path(options.hidden) if options.hidden else None, task)
    if task:
        print(result.output)
    show(result, console)
    write(result, options.json, options.junit)
    return 0 if result.points == result.possible else 1
