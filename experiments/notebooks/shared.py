"""What the notebooks share: shipped results or fresh ones, figures in words, tables, colours."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from IPython.display import Markdown
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from experiments.compare.records import Plan, Run, read_plan, read_runs
from experiments.intervals import ENOUGH, median_interval, remark, shown

MEASURED = Path(__file__).parents[2] / "report" / "measured"
COLOURS = {"rpyc": "#d55e00", "broadcast": "#0072b2", "peer": "#009e73"}
# A command's exit status: 0, or 1 where its own figure does not hold, which a small measurement need not.
MEASURED_STATUS = (0, 1)
# Of an axis of ratios.
FINE_TICKS = (0.25, 0.33, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5)
LEAST_RANGE = (0.88, 1.13)
COARSE_TICKS = tuple(2.0**power for power in range(-10, 17))


def comparison(measure: bool, results: str, fresh: list[str]) -> tuple[Plan, list[Run]]:
    """`results`: a folder that `compare` wrote, by its path or its name in report/measured; or a fresh one of
    `python -m evolution compare *fresh`. ValueError of one line where there is none."""
    if measure:
        folder = Path(tempfile.mkdtemp(prefix="evolution-notebook-")) / "compare"
        _run(["compare", *fresh, "--out", str(folder)])
    else:
        folder = MEASURED / results
    plan, runs = read_plan(folder), read_runs(folder)
    if not runs:
        raise ValueError(f"{folder} holds a plan and no runs: go on with `compare --resume`, or measure afresh")
    print(f"{len(runs)} runs of {len(plan.arms)} arms, from {folder}")
    print(f"measured with: {plan.environment['command']}")
    _print_machine(plan.environment)
    return plan, runs


def bench_result(measure: bool, results: str, fresh: list[str]) -> dict[str, Any]:
    """`results`: a file that a `bench` wrote, by its path or its name in report/measured; or a fresh one of
    `python -m evolution bench *fresh`. ValueError of one line where there is none."""
    if measure:
        path = Path(tempfile.mkdtemp(prefix="evolution-notebook-")) / f"{fresh[0]}.json"
        _run(["bench", *fresh, "--json", str(path)])
    else:
        path = MEASURED / results
    if not path.exists():
        raise ValueError(f"there is no {path}: set MEASURE = True, or RESULTS to a file of `bench {fresh[0]} --json`")
    result = msgspec.json.decode(path.read_bytes())
    print(f"from {path}")
    print(f"measured with: {result['environment']['command']}")
    _print_machine(result["environment"])
    return result


def _print_machine(environment: dict[str, Any]) -> None:
    load = environment["load_average"][0]
    print(f"machine: {environment['cpu_model']}, {environment['cpu_count']} cores, load average {load:.1f}")
    print(f"intervals: of the median, 95% from {ENOUGH} repeats on; of fewer the range of all, which is less sure")


def _run(arguments: list[str]) -> None:
    """What the command prints appears as it comes."""
    command = [sys.executable, "-m", "evolution", *arguments]
    print(" ".join(["python", *command[1:]]), flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = ""
        for line in process.stdout:
            if "about" in line:  # how long it will take
                print(line, end="", flush=True)
            said = line.strip() or said
    if process.returncode not in MEASURED_STATUS:
        raise RuntimeError(f"the measurement ended with status {process.returncode}: {said}")


# ---------------------------------------------------------------------- in words


def in_words(ratio: dict[str, Any]) -> str:
    """A ratio with its interval, and what may be said of it."""
    pairs = len(ratio["pairs"])
    if pairs < 3:
        return f"{ratio['median']:.2f} (from {pairs} only: no interval, so nothing may be concluded)"
    return f"{shown(ratio)}: {remark(ratio) or ('more' if ratio['low'] > 1 else 'less')}"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markdown:
    """Numbers to three figures; what is None, a dash."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *([_cell(value) for value in row] for row in rows)]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return str(value)


# ---------------------------------------------------------------------- in pictures


def line(axes: Axes, x: Sequence[float], samples: Sequence[Sequence[float]], **style: Any) -> None:
    """Medians, with the interval of each as a bar. `samples[i]`: the repeats at x[i]."""
    medians = [float(np.median(one)) for one in samples]
    axes.errorbar(x, medians, yerr=_bars(medians, samples), capsize=3, markersize=5, **style)


def bars(axes: Axes, x: Sequence[float], samples: Sequence[Sequence[float]], width: float, **style: Any) -> None:
    medians = [float(np.median(one)) for one in samples]
    axes.bar(x, medians, width, yerr=_bars(medians, samples), capsize=2, error_kw={"lw": 1}, **style)


def _bars(medians: list[float], samples: Sequence[Sequence[float]]) -> list[list[float]]:
    intervals = [median_interval(one) for one in samples]
    below = [median - low for median, (low, _) in zip(medians, intervals, strict=True)]
    return [below, [high - median for median, (_, high) in zip(medians, intervals, strict=True)]]


def ratio_rows(axes: Axes, rows: Sequence[tuple[str, dict[str, Any], str]], axis: str) -> None:
    """(label, ratio, colour), one below the other: the median of the pairs, and its interval; 1 is no difference."""
    axes.axvline(1, color="#888888", lw=1)
    for place, (_, ratio, colour) in enumerate(rows):
        median, low, high = ratio["median"], ratio["low"], ratio["high"]
        axes.errorbar(median, -place, xerr=[[median - low], [high - median]], fmt="o", color=colour, capsize=3)
    axes.set_yticks([-place for place in range(len(rows))], [label for label, _, _ in rows])
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, LEAST_RANGE[0]), max(high, LEAST_RANGE[1])
    axes.set_xlim(low, high)
    ticks = [tick for tick in (FINE_TICKS if high / low < 6 else COARSE_TICKS) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(axis)
    axes.grid(axis="x", alpha=0.3)


def log_scale(axes: Axes) -> None:
    """Of the values, with plain numbers beside it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def subplots(rows: int = 1, columns: int = 1, size: tuple[float, float] = (10, 4), **settings: Any) -> tuple:
    return plt.subplots(rows, columns, figsize=size, layout="constrained", **settings)
