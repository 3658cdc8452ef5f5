"""The processes of a run as they really lived: pids, roles, threads, sockets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from experiments.compare.records import RUNS, Arm, Process, Run, Thread
from report.pictures.style import WIDTH, Picture, save, slug, stage_style

ROW_IN = 0.3
BOX_END, ROLE, THREADS, SOCKETS = 37.5, 39.5, 61.5, 87
CAPTION = (
    "Processes of {where}, one run of each stage. A box is a process, drawn under the one that started it; main is "
    "the caller's own. Threads are counted by whose they are: those of ZMQ and gloo run beside Python's. Sockets are "
    "those open at the end of the run."
)


def draw(folder: Path, runs: list[Run], arms: list[Arm], names: dict[Arm, str], where: str) -> Picture | None:
    """`arms` share a shape and constants; `names`: what each is called here."""
    firsts = [next((run for run in runs if run.arm == arm and run.processes), None) for arm in arms]
    chosen = [run for run in firsts if run is not None]
    if not chosen:
        return None
    rows = sum(len(run.processes) + 1.4 for run in chosen) + 1
    figure = plt.figure(figsize=(WIDTH, rows * ROW_IN + 0.1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(rows, 0))
    axes.axis("off")
    for x, text in ((ROLE, "role"), (THREADS, "threads"), (SOCKETS, "sockets")):
        axes.text(x, 0.55, text, fontsize=9, color="#555555", va="center")
    y = 1.0
    for run in chosen:
        style = stage_style(run.arm.stage)
        count = len(run.processes)
        axes.text(
            1, y + 0.5, f"{names[run.arm]}: {count} process{'es' * (count > 1)}", fontsize=11, fontweight="bold",
            color=style.colour, va="center",
        )  # fmt: skip
        y += 1
        for place, (process, depth, above) in enumerate(nested(run.processes)):
            _row(axes, process, depth, y + place, None if above is None else y + above, style.colour)
        y += count + 0.4
    return save(
        figure, folder, f"processes-{slug(where)}", f"Processes, {where}", CAPTION.format(where=where), RUNS,
        len(chosen),
    )  # fmt: skip


def nested(processes: list[Process]) -> list[tuple[Process, int, int | None]]:
    """(process, how deep, the place of the one above), each below its parent."""
    known = {process.pid for process in processes}
    rows: list[tuple[Process, int, int | None]] = []

    def add(process: Process, depth: int, above: int | None) -> None:
        here = len(rows)
        rows.append((process, depth, above))
        for child in processes:
            if child.parent == process.pid:
                add(child, depth + 1, here)

    for process in processes:
        if process.parent not in known:
            add(process, 0, None)
    return rows


def _row(axes: Axes, process: Process, depth: int, y: float, above: float | None, colour: str) -> None:
    left = 1 + 3.2 * depth
    if above is not None:
        stem = left - 1.8
        axes.plot([stem, stem, left], [above + 0.86, y + 0.5, y + 0.5], color="#888888", linewidth=1)
    box = FancyBboxPatch(
        (left, y + 0.14), BOX_END - left, 0.72, boxstyle="round,pad=0,rounding_size=0.2", facecolor="white",
        edgecolor=colour, linewidth=1.2,
    )  # fmt: skip
    axes.add_patch(box)
    middle = y + 0.52
    axes.text(left + 0.9, middle, process.name, fontsize=9, va="center")
    axes.text(BOX_END - 0.8, middle, f"pid {process.pid}", fontsize=8, color="#555555", va="center", ha="right")
    axes.text(ROLE, middle, process.role, fontsize=8.5, va="center")
    axes.text(THREADS, middle, threads_text(process.threads), fontsize=8.5, va="center")
    axes.text(SOCKETS, middle, sockets_text(process.sockets), fontsize=8.5, va="center")


def threads_text(threads: list[Thread]) -> str:
    """`7: 5 own, 2 of ZMQ`."""
    kinds = Counter(
        "of ZMQ" if thread.name.startswith("ZMQ") else "of gloo" if "gloo" in thread.name else "own"
        for thread in threads
    )
    return f"{len(threads)}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), reverse=True))


def sockets_text(sockets: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sockets.items() if count) or "none"
