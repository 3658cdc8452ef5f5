"""One turn as a strip: what every thread of every process did while rank 0 went through a turn."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from experiments.compare.measure import IDLE
from experiments.compare.records import RUNS, Arm, Run, Strip
from report.pictures.style import PARTS, WIDTH, Picture, group_of, part_patches, plain, save, slug

ROW_IN = 0.27
# Stages whose turns differ more than that have an axis each.
SHARED_UP_TO = 3
MS_FROM = 10_000  # us
CAPTION = (
    "One working turn of {where}: of one run of each stage the turn of replica 0's rank 0 that is the median by "
    "length, and what all other threads did in that time. Time goes from left to right; a row is a thread; a thin "
    "line is a thread that waits for work (idle). distribute is how the turn's input reaches the ranks (for rpyc: the "
    "call, as long as it lasts); forward is the model's computation. The axes are {axes}."
)


def draw(folder: Path, runs: list[Run], arms: list[Arm], names: dict[Arm, str], where: str) -> Picture | None:
    chosen = [run for arm in arms if (run := median_strip([run for run in runs if run.arm == arm]))]
    if not chosen:
        return None
    heights = [len(run.strip) for run in chosen]
    figure, grid = plt.subplots(
        len(chosen), 1, figsize=(WIDTH, (sum(heights) + 2.6 * len(chosen)) * ROW_IN + 0.8), squeeze=False,
        height_ratios=[height + 0.6 for height in heights], layout="constrained",
    )  # fmt: skip
    spans = [span(run.strip) for run in chosen]
    shared = max(spans) <= SHARED_UP_TO * min(spans)
    seen: set[str] = set()
    for axes, run, length in zip(grid[:, 0], chosen, spans, strict=True):
        longest = max(spans) if shared else length
        name, unit = ("ms", 1000) if longest >= MS_FROM else ("µs", 1)
        seen |= draw_strip(axes, run.strip, unit)
        axes.set_xlim(0, longest * 1.005 / unit)
        axes.set_title(f"{names[run.arm]}: a turn of {shown_time(length)}", loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel(f"{name} since the turn began", fontsize=8.5)
    figure.legend(handles=part_patches(seen), loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
    caption = CAPTION.format(where=where, axes="the same for all stages" if shared else "each stage's own")
    return save(figure, folder, f"turn-{slug(where)}", f"One turn, {where}", caption, RUNS, len(chosen))


def span(strip: list[Strip]) -> float:
    """us of the turn that was chosen."""
    return max(end for thread in strip for _, _, end in thread.parts)


def median_strip(runs: list[Run]) -> Run | None:
    """Of the runs with a strip, the one whose chosen turn is the median by length."""
    drawn = sorted((run for run in runs if any(thread.parts for thread in run.strip)), key=lambda run: span(run.strip))
    return drawn[len(drawn) // 2] if drawn else None


def stretches(thread: Strip) -> list[tuple[str, float, float]]:
    """(part, begin, end) of what is drawn: `distribute` as one, and without what is idle."""
    joined: list[tuple[str, float, float]] = []
    for name, begin, end in thread.parts:
        part = group_of(name)
        if end == begin:
            continue
        if joined and joined[-1][0] == part and joined[-1][2] == begin:
            joined[-1] = (part, joined[-1][1], end)
        elif part != IDLE:
            joined.append((part, begin, end))
    return joined


def draw_strip(axes: Axes, strip: list[Strip], unit: float) -> set[str]:
    """A row for each thread; `unit`: us in one of the axis. Returns the parts that are there."""
    seen = set()
    labels = []
    for row, thread in enumerate(strip):
        labels.append(thread.process if thread.thread == "loop" else f"{thread.process}, {thread.thread}")
        axes.axhline(row, color="#bbbbbb", linewidth=0.6, zorder=0)
        for part, begin, end in stretches(thread):
            colour, hatch = PARTS[part]
            axes.barh(
                row, (end - begin) / unit, 0.66, begin / unit, color=colour, hatch=hatch, edgecolor="#555555",
                linewidth=0.25, zorder=2,
            )  # fmt: skip
            seen.add(part)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    plain(axes)
    axes.tick_params(axis="y", length=0)
    return seen


def shown_time(microseconds: float) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds >= MS_FROM else f"{microseconds:,.0f} µs"
