"""What the notebooks share: shipped results or fresh ones, figures in words, tables, and pictures as the report's."""

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
from matplotlib.ticker import NullFormatter

from experiments.compare.records import Plan, Run, read_plan, read_runs
from experiments.intervals import ENOUGH, NO_DIFFERENCE, median_interval, remark, shown
from report.comparison import number
from report.pictures import forest
from report.pictures.style import STAGES, StageStyle, log_ticks

MEASURED = Path(__file__).parents[2] / "report" / "measured"
COLOURS = {stage: style.colour for stage, style in STAGES.items()}
FEWEST = 3  # samples: of fewer nothing is concluded


def comparison(measure: bool, results: str, fresh: list[str]) -> tuple[Plan, list[Run]]:
    """`results`: a folder that `compare` wrote, by its path or its name in report/measured; or a fresh one of
    `python -m evolution compare *fresh`. ValueError of one line where there is none."""
    if measure:
        with tempfile.TemporaryDirectory(prefix="evolution-notebook-") as temporary:
            folder = Path(temporary) / "compare"
            _run(["compare", *fresh, "--out", str(folder)], good=(0,))
            plan, runs = read_plan(folder), read_runs(folder)
        came_from = "measured afresh"
    else:
        folder = MEASURED / results
        plan, runs = read_plan(folder), read_runs(folder)
        came_from = f"from {folder}"
    if not runs:
        raise ValueError(f"{folder} holds a plan and no runs: go on with `compare --resume`, or measure afresh")
    print(f"{len(runs)} runs of {len(plan.arms)} arms, {came_from}")
    print(f"measured with: {plan.environment['command']}")
    _print_machine(plan.environment)
    return plan, runs


def bench_result(measure: bool, results: str, fresh: list[str]) -> dict[str, Any]:
    """`results`: a file that a `bench` wrote, by its path or its name in report/measured; or a fresh one of
    `python -m evolution bench *fresh`. ValueError of one line where there is none."""
    if measure:
        with tempfile.TemporaryDirectory(prefix="evolution-notebook-") as temporary:
            path = Path(temporary) / f"{fresh[0]}.json"
            # 1: its own bounds do not hold, which those of a small measurement need not.
            _run(["bench", *fresh, "--json", str(path)], good=(0, 1))
            result = msgspec.json.decode(path.read_bytes())
        print("measured afresh")
    else:
        path = MEASURED / results
        if not path.exists():
            raise ValueError(
                f"there is no {path}: set MEASURE = True, or RESULTS to a file of `bench {fresh[0]} --json`"
            )
        result = msgspec.json.decode(path.read_bytes())
        print(f"from {path}")
    print(f"measured with: {result['environment']['command']}")
    _print_machine(result["environment"])
    return result


def _print_machine(environment: dict[str, Any]) -> None:
    load = environment["load_average"][0]
    print(f"machine: {environment['cpu_model']}, {environment['cpu_count']} cores, load average {load:.1f}")
    print(f"intervals: of the median, 95% from {ENOUGH} repeats on; of fewer the range of all, which is less sure")


def _run(arguments: list[str], good: tuple[int, ...]) -> None:
    """What the command says of how long it takes appears as it comes. RuntimeError for a status that is not `good`."""
    command = [sys.executable, "-m", "evolution", *arguments]
    print(" ".join(["python", *command[1:]]), flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = ""
        for line in process.stdout:
            if "about" in line:  # how long it will take
                print(line, end="", flush=True)
            said = line.strip() or said
    if process.returncode not in good:
        raise RuntimeError(f"the measurement ended with status {process.returncode}: {said}")


# ---------------------------------------------------------------------- in words


def in_words(ratio: dict[str, Any]) -> str:
    """A ratio with its interval, and what may be said of it."""
    pairs = len(ratio["pairs"])
    if pairs < FEWEST:
        return f"{number(ratio['median'])} ({_too_few(pairs)})"
    return f"{shown(ratio)}: {remark(ratio) or ('more' if ratio['low'] > 1 else 'less')}{_unsure(pairs)}"


def difference_in_words(samples: Sequence[float], unit: str) -> str:
    """The same of differences, pair by pair, where 0 is none."""
    if len(samples) < FEWEST:
        return f"{number(float(np.median(samples)))} {unit} ({_too_few(len(samples))})"
    low, high = median_interval(samples)
    said = NO_DIFFERENCE if low <= 0 <= high else "more" if low > 0 else "less"
    return f"{value_in_words(samples, unit)}: {said}{_unsure(len(samples))}"


def value_in_words(samples: Sequence[float], unit: str) -> str:
    """The median of the repeats with its interval."""
    low, high = median_interval(samples)
    few = f": range of {len(samples)}" if len(samples) < ENOUGH else ""
    interval = f"[{number(low)}, {number(high)}{few}]" if len(samples) > 1 else "(one run)"
    return f"{number(float(np.median(samples)))} {unit} {interval}"


def _too_few(samples: int) -> str:
    return f"from {samples} only: no interval, so nothing may be concluded"


def _unsure(samples: int) -> str:
    return f", but {samples} are too few for 95%" if samples < ENOUGH else ""


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markdown:
    """Numbers to three figures; what is None, a dash."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *([_cell(value) for value in row] for row in rows)]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))


def _cell(value: Any) -> str:
    return "–" if value is None else number(value) if isinstance(value, int | float) else str(value)


# ---------------------------------------------------------------------- in pictures


def line(axes: Axes, x: Sequence[float], samples: Sequence[Sequence[float]], **style: Any) -> None:
    """Medians, with the interval of each as a bar. `samples[i]`: the repeats at x[i]."""
    medians = [float(np.median(one)) for one in samples]
    axes.errorbar(x, medians, yerr=_bars(medians, samples), capsize=3, markersize=5, **style)


def points(axes: Axes, x: Sequence[float], samples: Sequence[Sequence[float]], **style: Any) -> None:
    """The same without a line. On a logarithmic axis, where the length of a bar says nothing."""
    line(axes, x, samples, ls="", **{"marker": "o"} | style)


def bars(axes: Axes, x: Sequence[float], samples: Sequence[Sequence[float]], width: float, **style: Any) -> None:
    medians = [float(np.median(one)) for one in samples]
    axes.bar(x, medians, width, yerr=_bars(medians, samples), capsize=2, error_kw={"lw": 1}, **style)


def _bars(medians: list[float], samples: Sequence[Sequence[float]]) -> list[list[float]]:
    intervals = [median_interval(one) for one in samples]
    below = [median - low for median, (low, _) in zip(medians, intervals, strict=True)]
    return [below, [high - median for median, (_, high) in zip(medians, intervals, strict=True)]]


def ratio_rows(axes: Axes, rows: Sequence[tuple[str, dict[str, Any], StageStyle]], axis: str) -> None:
    """(label, ratio, look), one below the other: the median of the pairs, and its interval; 1 is no difference."""
    forest.rows(axes, rows, beside=False)
    axes.set_xlabel(axis)


def log_scale(axes: Axes) -> None:
    """Of the values, with plain numbers beside it. When all is drawn, since the ticks are for what is there."""
    axes.set_yscale("log")
    ticks = log_ticks(*axes.get_ylim())
    axes.set_yticks(ticks, [number(tick) for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def subplots(rows: int = 1, columns: int = 1, size: tuple[float, float] = (10, 4), **settings: Any) -> tuple:
    return plt.subplots(rows, columns, figsize=size, layout="constrained", **settings)
