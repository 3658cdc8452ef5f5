"""`bench idle`: what an engine without requests costs, and how late its first request is after that.

Each stage on the simulated accelerator at two ranks: with `level` constants (an idle engine blocks), with `level
--idle spin`, and with the constants of its era (spins, or sleeps and polls). So many seconds without a request:

    cores        CPU time of all processes per second, by their CPU clocks
    switches/s   context switches of all threads: voluntary, where a thread went to wait, and involuntary
    syscalls/s   counted by `perf stat`, where there is one and it may; a dash where not

Where `perf` is, it counts system calls in a window of its own after that: counting them takes time of the cores.

Then one request comes: the time from its hand-over in the main process until the last rank has taken it in. After it
FIRSTS more, each after SETTLE without one. A pair is an engine that blocks and one that spins, started one after the
other: of each the median of its FIRSTS. The first request after the long silence is compared in the same way, one of
each engine, and so with a wider interval.

A first request's time needs the trace, which is on for `level` only. A spinning engine records a turn for each of its
looks, and flushes them to a file every few hundred turns: its cores and system calls hold that, and its first request
may meet a flush. All plan `replicated`, so that every rank takes the request in.

`level` must burn at most 0.02 cores, and take its first request in at most 1 ms later than when it spins, after either
silence: each by its whole interval, over the engines. 7 rounds of three stages take about 13 minutes:
63 engines start, and each is silent for 5 s.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
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
from common.run_folder import run_folder
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.bench.engines import finish, pids_of, start
from experiments.bench.option_lists import check_repeats, names
from experiments.bench.rounds import median, spread, spread_verdict
from experiments.bench.verdicts import combined, in_words
from report.trace import load

TP = 2
MOST_CORES = 0.02
MOST_LATER = 0.001  # s
COUNTERS = ("cores", "voluntary", "involuntary")
FIRSTS = 8  # of one engine, after SETTLE
SETTLE = 0.5  # s after a start, or after a request
SYSCALLS_S = 1.0  # of the window in which they are counted
KINDS = ("first", "first_after_window")


@dataclass(frozen=True)
class Arm:
    name: str
    constants: str
    idle: str


BLOCK = Arm("level", "level", "block")
SPIN = Arm("level, spin", "level", "spin")
ERA = Arm("era", "era", "spin")
ARMS = (BLOCK, SPIN, ERA)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--seconds", type=float, default=5.0, help="without a request (default: 5)")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"default: {','.join(STAGES)}")
    parser.add_argument("--dp-size", type=int, default=1, help="replicas of two ranks (default: 1)")
    parser.add_argument("--out", metavar="DIR", help="write idle.png and idle.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    stages = check_options(options)
    engine_s = 3.5 + options.seconds + SETTLE + SYSCALLS_S
    seconds = options.repeats * len(stages) * (len(ARMS) * engine_s + 2 * FIRSTS * SETTLE)
    print(f"{len(stages)} stages, {options.repeats} rounds: about {seconds / 60:.0f} min", flush=True)
    cells = {(stage, arm.name): new_cell(stage, arm) for stage in stages for arm in ARMS}
    for repeat in range(options.repeats):
        for stage in stages:
            for arm in ARMS if repeat % 2 == 0 else ARMS[::-1]:
                for name, value in measure_engine(stage, arm, options).items():
                    cells[stage, arm.name][name].append(value)
    args, _ = resolve_args(EngineArgs(device="sim", tp_size=TP, dp_size=options.dp_size))
    judged = [later(stage, cells) for stage in stages]
    return {
        "bench": "idle",
        "unit": "cores, times a second; first: s; a value for each engine",
        "seconds": options.seconds,
        "settle": SETTLE,
        "repeats": options.repeats,
        "dp_size": options.dp_size,
        "stages": stages,
        "cells": list(cells.values()),
        "later": judged,
        "verdict": combined(word for one in judged for word in one["verdicts"].values()),
        "environment": environment(args),
    }


def check_options(options: argparse.Namespace) -> list[str]:
    """Stages, in their own order. ValueError of one line."""
    check_repeats(options.repeats)
    check_repeats(options.dp_size, "--dp-size")
    if not 0 < options.seconds <= 3600:
        raise ValueError(f"--seconds must be above 0, up to 3600, not {options.seconds:g}")
    return names("--stages", options.stages, STAGES)


def new_cell(stage: str, arm: Arm) -> dict[str, Any]:
    """Lists of one value for each engine; `firsts` of a list."""
    return {"stage": stage, "arm": arm.name, **{name: [] for name in (*COUNTERS, "syscalls", *KINDS, "firsts")}}


# ---------------------------------------------------------------------- measuring


def measure_engine(stage: str, arm: Arm, options: argparse.Namespace) -> dict[str, Any]:
    """The values of a cell; those of first requests only where they are traced."""
    with run_folder() as folder:
        args = EngineArgs(
            stage=stage,
            tp_size=TP,
            dp_size=options.dp_size,
            scheduling="replicated",
            constants=arm.constants,
            idle=arm.idle,
            device="sim",
            trace_dir=str(folder) if arm is not ERA else None,
        )
        with start(args) as engine:
            send_one(engine)
            time.sleep(SETTLE)
            taken: dict[str, Any] = measure_window(pids_of(engine), options.seconds)
            numbers = [send_one(engine)] if arm is not ERA else []
            time.sleep(SETTLE)
            taken["syscalls"] = count_syscalls(pids_of(engine), SYSCALLS_S)
            send_one(engine)
            for _ in range(FIRSTS if arm is not ERA else 0):
                time.sleep(SETTLE)
                numbers.append(send_one(engine))
        if arm is not ERA:
            times = first_times(folder)
            after_window, *firsts = (time_of(number, times, stage, arm) for number in numbers)
            taken |= {"first": median(firsts), "first_after_window": after_window, "firsts": firsts}
    return taken


def time_of(number: int, times: dict[int, float], stage: str, arm: Arm) -> float:
    """RuntimeError if the trace has lost it."""
    if number not in times:
        raise RuntimeError(
            f"bench idle: {stage}, {arm.name}: the trace does not say when request r{number} was taken in"
        )
    return times[number]


def measure_window(pids: list[int], seconds: float) -> dict[str, float]:
    """COUNTERS a second."""
    before = [counted(pid) for pid in pids]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    after = [counted(pid) for pid in pids]
    cpu_ns, voluntary, involuntary = ((np.array(after) - np.array(before)).sum(axis=0) / took).tolist()
    return {"cores": cpu_ns / 1e9, "voluntary": voluntary, "involuntary": involuntary}


def counted(pid: int) -> tuple[int, int, int]:
    """ns on a core, voluntary and involuntary context switches of a process so far."""
    threads = thread_accounts(pid)
    return process_cpu_ns(pid), sum(one.voluntary for one in threads), sum(one.involuntary for one in threads)


def count_syscalls(pids: list[int], seconds: float) -> float | None:
    """A second, of all their threads, in a window of so long; None where there is no `perf`, or it may not count."""
    perf = shutil.which("perf")
    if perf is None:
        return None
    command = [perf, "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", ",".join(map(str, pids))]
    counting = subprocess.run(
        [*command, "sleep", f"{seconds}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    return counted_syscalls(counting.stderr, counting.returncode, seconds)


def counted_syscalls(said: str, status: int, seconds: float) -> float | None:
    """A second, as `perf stat` said; None where they could not be counted."""
    first = said.split(",")[0].strip()
    if status != 0:
        return None
    if first == "<not counted>":  # none of them ran meanwhile
        return 0.0
    return int(first) / seconds if first.isascii() and first.isdecimal() else None


def send_one(engine: Engine) -> int:
    """One request of one token; the number in its id."""
    requests = engine.make_requests(None, {"max_new_tokens": 1, "ignore_eos": True}, [list(range(1, 17))])[1]
    (stream,) = finish(engine, requests)
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
    """Cores of `level`, and for each of KINDS how much later its first request is than that of an engine that spins, s:
    spreads over the engines; and `verdicts` on them."""
    block, spin = cells[stage, BLOCK.name], cells[stage, SPIN.name]
    found = {"cores": spread(block["cores"])}
    for kind in KINDS:
        found[kind] = spread([one - other for one, other in zip(block[kind], spin[kind], strict=True)])
    bounds = {"cores": MOST_CORES, **dict.fromkeys(KINDS, MOST_LATER)}
    verdicts = {name: spread_verdict(found[name], at_most=most) for name, most in bounds.items()}
    return {"stage": stage, **found, "verdicts": verdicts}


def show(result: dict[str, Any]) -> None:
    console = Console()
    ranks = f"{TP} ranks" if result["dp_size"] == 1 else f"{result['dp_size']} replicas of {TP} ranks"
    title = (
        f"{result['seconds']:g} s without a request, {ranks}: context switches, calls, cores; first request; medians"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = (
        "volun-\ntary/s",
        "involun-\ntary/s",
        "syscalls\n/s",
        "cores",
        "first,\nms",
        f"after\n{result['seconds']:g} s",
    )
    for column in ("stage", "constants", *columns):
        table.add_column(column, justify="left" if column in ("stage", "constants") else "right", no_wrap=True)
    for cell in result["cells"]:
        syscalls = [count for count in cell["syscalls"] if count is not None]
        table.add_row(
            cell["stage"],
            cell["arm"],
            f"{median(cell['voluntary']):.0f}",
            f"{median(cell['involuntary']):.0f}",
            f"{median(syscalls):.0f}" if syscalls else "-",
            f"{median(cell['cores']):.4f}",
            *(f"{median(cell[kind]) * 1e3:.2f}" if cell[kind] else "-" for kind in KINDS),
        )
    console.print(table)
    if all(count is None for cell in result["cells"] for count in cell["syscalls"]):
        console.print("syscalls were not counted: `perf stat -e raw_syscalls:sys_enter` is not here or not allowed")
    for one in result["later"]:
        console.print(f"{one['stage']}, level:", soft_wrap=True)
        for name, words, unit, most in (
            ("cores", "cores", 1.0, MOST_CORES),
            ("first", f"ms later than spinning, after {result['settle']:g} s", 1e3, MOST_LATER),
            ("first_after_window", f"ms later than spinning, after {result['seconds']:g} s", 1e3, MOST_LATER),
        ):
            middle, low, high = (f"{one[name][end] * unit:.4g}" for end in ("median", "low", "high"))
            console.print(
                f"  {middle} [{low}, {high}] {words} (at most {most * unit:g}): {one['verdicts'][name]}", soft_wrap=True
            )
    console.print("bounds: " + in_words(word for one in result["later"] for word in one["verdicts"].values()))
