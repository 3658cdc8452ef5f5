"""`bench scheduling`: what it costs that every rank plans for itself, against rank 0 planning for all.

With `--scheduling replicated` the ranks are sent the requests, and each works out the same plan; with `rank0` rank 0
plans, and the ranks are sent the plan. All stages can do both. On the simulated accelerator, so that planning does not
compete with a model for the cores. Each engine takes the cells one after the other, on an empty cache: so many requests
at once that fill the batch (at most 64 run), and so many more that wait.

    messages, bytes, collectives   a turn, by which the ranks are told what to do: with gloo from rank 0 to the others;
                         with rpyc all that router and ranks send, the tokens that rank 0 gives back among it
    CPU      of all processes a turn, as the system counts it, without what only simulating takes
    TPOT     median of the requests
    planning wall time of a turn that rank 0 spends on taking requests in and choosing what runs

A turn is one forward. Requests of 128 random token ids get 16 to 48 tokens, so that they leave one by one. The policy
is dfs-weight, which looks at every request that waits; the default, lpm, does so up to 128 of them. At more than two
ranks on two cores only the counts and the CPU time say something. Each repeat measures every arm once, every second
repeat in the opposite order.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from common.messages import GenerateRequest
from common.os_accounts import process_cpu_ns
from common.run_folder import run_folder
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.metrics import collect
from evolution.stages import STAGES
from experiments.bench.distribute_turns import PLANNING
from experiments.bench.engines import finish, pids_of
from experiments.bench.option_lists import check_once, check_repeats, numbers
from experiments.bench.rounds import median
from experiments.intervals import pairwise_ratio, remark, shown
from report.trace import ThreadTrace, counts_of, load, parts_of, working_turns

SCHEDULINGS = ("replicated", "rank0")
MOST_RUNNING = 64
# (requests that run, requests that wait at the beginning)
CELLS = ((1, 0), (16, 0), (64, 0), (64, 200), (64, 1000))
INPUT_LEN, OUTPUT_LENS = 128, (16, 48)
LEAST_REQUESTS = 32  # of a cell: a small one is measured several times
COUNTS = ("bytes", "collectives", "messages")
FIGURES = {
    "bytes": "bytes", "collectives": "coll.", "messages": "messages",
    "cpu_us": "CPU us", "tpot_us": "TPOT us", "planning_us": "plan us",
}  # fmt: skip
ENGINE_S, CELL_S = 3.5, 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stages", default=",".join(STAGES), help=f"default: {','.join(STAGES)}")
    parser.add_argument("--tp-size", default="2,4", metavar="T,..", help="default: 2,4")
    parser.add_argument("--cells", default=_named(CELLS), help=f"running+waiting; default: {_named(CELLS)}")
    parser.add_argument("--schedule-policy", default="dfs-weight", help="as of `run` (default: dfs-weight)")
    parser.add_argument("--repeats", type=int, default=7, help="runs of every arm (default: 7)")


def _named(cells: tuple[tuple[int, int], ...]) -> str:
    return ",".join(f"{running}+{waiting}" for running, waiting in cells)


def run(options: argparse.Namespace) -> dict[str, Any]:
    arms, cells = check_options(options)
    rounds = [(repeat, arm) for repeat in range(options.repeats) for arm in (arms if repeat % 2 == 0 else arms[::-1])]
    print(f"{len(rounds)} engines: about {len(rounds) * (ENGINE_S + CELL_S * len(cells)) / 60:.0f} min", flush=True)
    samples = []
    for repeat, arm in rounds:
        samples += [{**arm, "repeat": repeat, **one} for one in measure(arm, cells, options.schedule_policy, repeat)]
    return {
        "bench": "scheduling",
        "unit": "per turn, TPOT per token; times in us",
        "policy": options.schedule_policy,
        "most_running": MOST_RUNNING,
        "cells": cells,
        "samples": samples,
        "ratios": ratios_of(samples),
        "verdict": None,  # it has no bound to keep
        "environment": environment(resolve_args(EngineArgs(device="sim", tp_size=2))[0]),
    }


def check_options(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Arms (stage, scheduling, tp_size) and cells. ValueError of one line."""
    check_repeats(options.repeats)
    try:
        cells = [(int(running), int(waiting)) for running, waiting in (c.split("+") for c in options.cells.split(","))]
    except ValueError:
        cells = []
    if not cells or any(not 1 <= running <= MOST_RUNNING or waiting < 0 for running, waiting in cells):
        raise ValueError(f"--cells {options.cells!r}: give running+waiting, like 16+0,{MOST_RUNNING}+200")
    if any(waiting and running < MOST_RUNNING for running, waiting in cells):
        raise ValueError(f"--cells {options.cells!r}: requests wait only where {MOST_RUNNING} run")
    check_once("--cells", cells)
    check_once("--stages", options.stages.split(","))
    sizes = numbers("--tp-size", options.tp_size, 2, "give numbers above 1, like 2,4; one rank plans for itself")
    arms = [
        {"stage": stage, "scheduling": scheduling, "tp_size": tp_size}
        for tp_size in sizes
        for stage in options.stages.split(",")
        for scheduling in SCHEDULINGS
    ]
    for arm in arms:
        resolve_args(EngineArgs(**arm, device="sim", schedule_policy=options.schedule_policy))
    return arms, cells


# ---------------------------------------------------------------------- measuring


def measure(arm: dict[str, Any], cells: list[tuple[int, int]], policy: str, repeat: int) -> list[dict[str, Any]]:
    """One engine's life: a sample for each cell."""
    taken = []
    with run_folder() as folder:
        settings = {"device": "sim", "schedule_policy": policy, "max_running_requests": MOST_RUNNING}
        with Engine(**arm, **settings, trace_dir=str(folder)) as engine:
            finish(engine, make(engine, MOST_RUNNING, np.random.default_rng((repeat, 0))))  # warm
            for running, waiting in cells:
                rng = np.random.default_rng((repeat, running, waiting))  # the same requests in every arm
                taken.append({"running": running, "waiting": waiting, **take(engine, running + waiting, rng)})
        threads = load(folder)
    for sample in taken:
        window = sample.pop("window")
        sample |= per_turn([thread.within(*window) for thread in threads], sample.pop("cpu_ns"))
    return taken


def make(engine: Engine, count: int, rng: np.random.Generator) -> list[GenerateRequest]:
    ids = rng.integers(0, engine.model_config.vocab_size, (count, INPUT_LEN)).tolist()
    lengths = rng.integers(OUTPUT_LENS[0], OUTPUT_LENS[1] + 1, count).tolist()
    sampling = [{"temperature": 0, "max_new_tokens": length, "ignore_eos": True} for length in lengths]
    return engine.make_requests(None, sampling, ids, stream=True)[1]


def take(engine: Engine, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Batches of `count` requests, all at once and each on an empty cache. CPU time is that from the first hand-over of
    a batch to its last token: making and collecting them is not the engine's."""
    pids = pids_of(engine)
    simulating, cpu = _simulating(engine), 0.0
    batches = [make(engine, count, rng) for _ in range(math.ceil(LEAST_REQUESTS / count))]
    window = [time.perf_counter_ns()]
    tpots: list[float] = []
    for requests in batches:
        engine.flush_cache()
        before = _cpu_ns(pids)
        streams = finish(engine, requests)
        cpu += _cpu_ns(pids) - before
        tpots += collect(streams).tpot
    window.append(time.perf_counter_ns())
    cpu -= 1e9 * (_simulating(engine) - simulating)
    return {"window": window, "cpu_ns": cpu, "tpot_us": median(tpots) * 1e6}


def _cpu_ns(pids: list[int]) -> float:
    return sum(process_cpu_ns(pid) for pid in pids)


def _simulating(engine: Engine) -> float:
    """CPU seconds, of all ranks, that only a simulation takes."""
    (stats,) = engine.stats()
    return stats["sim_cpu_seconds"] + stats["sim_others_cpu_seconds"]


def per_turn(threads: list[ThreadTrace], cpu_ns: float) -> dict[str, float]:
    """What happened in a window, a turn of rank 0."""
    rank0 = next(thread for thread in threads if "TP0" in thread.process)
    working = working_turns(rank0)
    parts = parts_of(rank0, working)
    # Everything is counted by the thread that sends it, a collective by rank 0: so the sum counts nothing twice.
    of_threads = [counts_of(thread, working_turns(thread), distribute=True) for thread in threads]
    counts = sum(map(Counter, of_threads), Counter())
    return {
        "turns": len(working),
        **{name: counts[name] / len(working) for name in COUNTS},
        "cpu_us": cpu_ns / len(working) / 1e3,
        "planning_us": sum(parts.get(part, (0, 0))[0] for part in PLANNING) / len(working) / 1e3,
    }


# ---------------------------------------------------------------------- comparing


def values(
    samples: list[dict[str, Any]], stage: str, scheduling: str, tp_size: int, cell: tuple[int, int], figure: str
) -> list[float]:
    """One for each repeat, in their order."""
    key = (stage, scheduling, tp_size, *cell)
    names = ("stage", "scheduling", "tp_size", "running", "waiting")
    return [sample[figure] for sample in samples if tuple(sample[name] for name in names) == key]


def ratios_of(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """rank0 over replicated, repeat by repeat, where there are several and no figure is 0."""
    keys = dict.fromkeys((s["stage"], s["tp_size"], s["running"], s["waiting"]) for s in samples)
    found = []
    for stage, tp_size, running, waiting in keys:
        for figure in FIGURES:
            replicated, rank0 = (
                values(samples, stage, scheduling, tp_size, (running, waiting), figure) for scheduling in SCHEDULINGS
            )
            if all(replicated) and all(rank0):
                ratio = pairwise_ratio(rank0, replicated)
                cell = {"stage": stage, "tp_size": tp_size, "running": running, "waiting": waiting}
                found.append({**cell, "figure": figure, "ratio": ratio})
    return found


def show(result: dict[str, Any]) -> None:
    console = Console()
    samples = result["samples"]
    for stage, tp_size in dict.fromkeys((s["stage"], s["tp_size"]) for s in samples):
        table = Table(title=f"{stage}, TP {tp_size}: replicated / rank0, medians; rank0 over replicated [interval]")
        table.add_column("run + wait")
        for name in FIGURES.values():
            table.add_column(name, justify="right")
        for cell in result["cells"]:
            middle = {
                figure: [median(values(samples, stage, s, tp_size, tuple(cell), figure)) for s in SCHEDULINGS]
                for figure in FIGURES
            }
            table.add_row("{} + {}".format(*cell), *(f"{a:.4g} / {b:.4g}" for a, b in middle.values()))
            found = {
                one["figure"]: one["ratio"]
                for one in result["ratios"]
                if (one["stage"], one["tp_size"], one["running"], one["waiting"]) == (stage, tp_size, *cell)
            }
            table.add_row("", *(_ratio(found.get(figure)) for figure in FIGURES), style="dim")
        console.print(table)
    console.print(
        f"a turn is a forward; policy {result['policy']}; = : no difference seen, ~ : the interval is wider than the"
        " effect",
        soft_wrap=True,
    )


def _ratio(ratio: dict[str, Any] | None) -> str:
    if ratio is None or len(ratio["pairs"]) == 1:
        return "" if ratio is None else f"{ratio['median']:.2f}"
    mark = {"": "", "no difference seen": " ="}.get(remark(ratio), " ~")
    return shown(ratio) + mark
