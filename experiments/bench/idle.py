"""`bench idle`: what an engine without requests costs, and how late its first request is after that.

Each stage on the simulated accelerator at two ranks: with `level` constants (an idle engine blocks), with `level
--idle spin`, and with the constants of its era (spins, or sleeps and polls). So many seconds without a request:

    cores        CPU time of all processes per second, by their CPU clocks
    switches/s   context switches of all threads: voluntary, where a thread went to wait, and involuntary
    syscalls/s   counted by `perf stat`, where there is one and it may; a dash where not

Then one request comes: the time from its hand-over in the main process until the last rank has taken it in. It needs
the trace, which is on for `level` only; in a spinning engine writing it burns CPU, on cores that are busy anyway. All
plan `replicated`, so that every rank takes the request in.

`level` must burn less than 0.02 cores, and take its first request in at most 1 ms later than when it spins: median of
the differences of the pairs, each of windows one shortly after the other.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from common.os_accounts import process_cpu_ns, thread_accounts
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.bench.process_ids import pids_of
from experiments.intervals import median_interval
from report.trace import load

TP = 2
MOST_CORES = 0.02
MOST_LATER = 0.001  # s
COUNTERS = ("cores", "voluntary", "involuntary", "syscalls")
SETTLE = 0.5  # s after a start, or after a request


@dataclass(frozen=True)
class Arm:
    name: str
    constants: str
    idle: str
    windows: int  # of one engine: each gives one more first request


BLOCK = Arm("level", "level", "block", 2)
SPIN = Arm("level, spin", "level", "spin", 2)
ERA = Arm("era", "era", "spin", 1)
ARMS = (BLOCK, SPIN, ERA)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="without a request (default: 5)")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"default: {','.join(STAGES)}")
    parser.add_argument("--dp-size", type=int, default=1, help="replicas of two ranks (default: 1)")
    parser.add_argument("--out", metavar="DIR", help="write idle.png and idle.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    stages = check_options(options)
    windows = sum(arm.windows for arm in ARMS)
    seconds = options.repeats * len(stages) * (len(ARMS) * 3.5 + windows * (options.seconds + SETTLE))
    print(f"{len(stages)} stages, {options.repeats} rounds: about {seconds:.0f} s", flush=True)
    cells = {(stage, arm.name): new_cell(stage, arm) for stage in stages for arm in ARMS}
    for repeat in range(options.repeats):
        for stage in stages:
            for arm in ARMS if repeat % 2 == 0 else ARMS[::-1]:
                measured, first = measure_engine(stage, arm, options)
                cell = cells[stage, arm.name]
                for name in COUNTERS:
                    cell[name] += [window[name] for window in measured]
                cell["first"] += first
    args, _ = resolve_args(EngineArgs(device="sim", tp_size=TP, dp_size=options.dp_size))
    result = {
        "bench": "idle",
        "unit": "cores, times a second; first: s",
        "seconds": options.seconds,
        "repeats": options.repeats,
        "dp_size": options.dp_size,
        "stages": stages,
        "cells": list(cells.values()),
        "later": [later(stage, cells) for stage in stages],
        "environment": environment(args),
    }
    result["holds"] = all(one["holds"] for one in result["later"])
    if options.out:
        from experiments.bench.idle_plot import draw

        result["pictures"] = draw(result, Path(options.out))
    return result


def check_options(options: argparse.Namespace) -> list[str]:
    """Stages, in their own order. ValueError of one line."""
    for name, value in (("--repeats", options.repeats), ("--dp-size", options.dp_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if not 0 < options.seconds <= 3600:
        raise ValueError(f"--seconds must be above 0, up to 3600, not {options.seconds:g}")
    for name in options.stages.split(","):
        if name not in STAGES:
            raise ValueError(f"--stages: there is no {name!r}; there are {', '.join(STAGES)}")
    return [name for name in STAGES if name in options.stages.split(",")]


def new_cell(stage: str, arm: Arm) -> dict[str, Any]:
    return {"stage": stage, "arm": arm.name, **{name: [] for name in COUNTERS}, "first": []}


# ---------------------------------------------------------------------- measuring


def measure_engine(stage: str, arm: Arm, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[float]]:
    """COUNTERS of each window, and the seconds of the first request after each; none where nothing is traced."""
    with tempfile.TemporaryDirectory(prefix="evo-trace-") as folder:
        with Engine(
            stage=stage,
            tp_size=TP,
            dp_size=options.dp_size,
            scheduling="replicated",
            constants=arm.constants,
            idle=arm.idle,
            device="sim",
            trace_dir=folder if arm is not ERA else None,
        ) as engine:
            send_one(engine)
            windows, numbers = [], []
            for _ in range(arm.windows):
                time.sleep(SETTLE)
                windows.append(measure_window(pids_of(engine), options.seconds))
                numbers.append(send_one(engine))
        times = first_times(Path(folder))
    return windows, [times[number] for number in numbers if number in times]


def measure_window(pids: list[int], seconds: float) -> dict[str, Any]:
    counting = start_counting_syscalls(pids, seconds)
    before = [counted(pid) for pid in pids]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    after = [counted(pid) for pid in pids]
    cpu_ns, voluntary, involuntary = ((np.array(after) - np.array(before)).sum(axis=0) / took).tolist()
    return {
        "cores": cpu_ns / 1e9,
        "voluntary": voluntary,
        "involuntary": involuntary,
        "syscalls": counted_syscalls(counting, seconds),
    }


def counted(pid: int) -> tuple[int, int, int]:
    """ns on a core, voluntary and involuntary context switches of a process so far."""
    threads = thread_accounts(pid)
    return process_cpu_ns(pid), sum(one.voluntary for one in threads), sum(one.involuntary for one in threads)


def start_counting_syscalls(pids: list[int], seconds: float) -> subprocess.Popen | None:
    """Of all their threads, for so long; None where there is no `perf`."""
    perf = shutil.which("perf")
    if perf is None:
        return None
    command = [perf, "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", ",".join(map(str, pids))]
    counting = subprocess.Popen(
        [*command, "sleep", f"{seconds}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    time.sleep(0.2)  # it has begun
    return counting


def counted_syscalls(counting: subprocess.Popen | None, seconds: float) -> float | None:
    """A second; None where they could not be counted."""
    if counting is None:
        return None
    said = counting.communicate(timeout=seconds + 30)[1]
    first = said.split(",")[0].strip()
    if counting.returncode != 0:
        return None
    if first == "<not counted>":  # none of them ran meanwhile
        return 0.0
    return int(first) / seconds if first.isdigit() else None


def send_one(engine: Engine) -> int:
    """One request of one token; the number in its id."""
    requests = engine.make_requests(None, {"max_new_tokens": 1, "ignore_eos": True}, [list(range(1, 17))])[1]
    (stream,) = engine.submit(requests)
    stream.result()
    return int(stream.rid.removeprefix("r"))


def first_times(folder: Path) -> dict[int, float]:
    """For each request's number the seconds from its hand-over until the last rank that has it took it in."""
    handed: dict[int, int] = {}
    taken: dict[int, int] = {}
    for thread in load(folder):
        for record in thread.requests:
            if record.name == "received" and thread.process == "main":
                handed[record.value] = record.wall_ns
            elif record.name == "received":
                taken[record.value] = max(record.wall_ns, taken.get(record.value, 0))
    return {number: (taken[number] - wall) / 1e9 for number, wall in handed.items() if number in taken}


# ---------------------------------------------------------------------- judging


def later(stage: str, cells: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """How much later the first request is when the engine blocked, s; and whether both figures of `level` hold."""
    block, spin = cells[stage, BLOCK.name], cells[stage, SPIN.name]
    differences = [one - other for one, other in zip(block["first"], spin["first"], strict=True)]
    low, high = median_interval(differences)
    median, cores = float(np.median(differences)), float(np.median(block["cores"]))
    return {
        "stage": stage,
        "cores": cores,
        "differences": differences,
        "median": median,
        "low": low,
        "high": high,
        "holds": cores < MOST_CORES and median <= MOST_LATER,
    }


def show(result: dict[str, Any]) -> None:
    console = Console()
    ranks = f"{TP} ranks" if result["dp_size"] == 1 else f"{result['dp_size']} replicas of {TP} ranks"
    title = f"{result['seconds']:g} s without a request, {ranks}; medians"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("stage", "constants", "voluntary\nswitches/s", "involuntary", "syscalls/s", "cores", "first, ms"):
        table.add_column(column, justify="left" if column in ("stage", "constants") else "right", no_wrap=True)
    for cell in result["cells"]:
        syscalls = [count for count in cell["syscalls"] if count is not None]
        table.add_row(
            cell["stage"],
            cell["arm"],
            f"{np.median(cell['voluntary']):.0f}",
            f"{np.median(cell['involuntary']):.0f}",
            f"{np.median(syscalls):.0f}" if syscalls else "-",
            f"{np.median(cell['cores']):.4f}",
            f"{np.median(cell['first']) * 1e3:.2f}" if cell["first"] else "-",
        )
    console.print(table)
    if all(count is None for cell in result["cells"] for count in cell["syscalls"]):
        console.print("syscalls were not counted: `perf stat -e raw_syscalls:sys_enter` is not here or not allowed")
    for one in result["later"]:
        word = "holds" if one["holds"] else "fails"
        console.print(
            f"{one['stage']}: level burns {one['cores']:.4f} cores (below {MOST_CORES:g}), and takes the first request"
            f" {one['median'] * 1e3:.2f} [{one['low'] * 1e3:.2f}, {one['high'] * 1e3:.2f}] ms later than spinning"
            f" (at most {MOST_LATER * 1e3:g}): {word}",
            soft_wrap=True,
        )
    for path in result.get("pictures", []):
        console.print(f"picture: {path}", soft_wrap=True)
