"""`bench distribute`: what bringing a turn's input to every rank costs in a real engine, over its bare mechanism.

An engine of each stage runs on the simulated accelerator (`--device sim`, constants `level`, tracing on), and in the
same round the mechanism that it uses: the same code, between processes that compute nothing (as in `bench mechanisms`).

    0            a decode turn of 16 running requests, nothing new
    0, streams   the same, while their tokens go on to the detokenizer and the caller, who take part of the cores
    16           a turn that takes in 16 requests of 512 token ids at once

Time of the engine: see `distribute_turns.py`. Of the mechanism: from the driver's having the list to the last rank's
having it, for rpyc with the answer. Both are walls on one monotonic clock. The driver pauses after each step as long as
the engine's ranks did before such a turn, since every mechanism is slower after a longer pause. In every second round
the arms come in the opposite order and the mechanism before the engine, with the pauses of the round before.

The ratio is that of the medians of a round; that of the rounds must be at most 1.3, with its whole interval, where
nothing streams: with as few cores as here the bare mechanism, which has the machine for itself, is no measure for a
turn that shares it. Not in that time is `late`: how long after rank 0 began to send the last rank came, which is
shown beside the verdict, and `with late`, the ratio if it were in it.

Where there are more ranks than cores, those that have the input plan on the cores that are bringing it to the others.
To tell what of a ratio that explains, the mechanism is measured once more with busy ranks: each burns, as soon as it
has the list, the CPU time that an engine's rank took to plan that turn. This ratio has a verdict of its own, which does
not change the first one. (With `rank0` the ranks have nothing to plan when a list arrives, and the two are the same.)

The trace itself is in the engine's time: at most ten calls of 0.1 to 0.3 us, of 0.8 in every seventh turn, whose parts
read the CPU clock (`bench overhead`).

`--scheduling rank0`, the default of rpyc, makes two calls a turn and sends a plan; `replicated` makes one. Both are
measured. Beside it, at T=2: the CPU time of rank 0, with a router's, in a decode turn for all but the forward and
this: at most 400 us. An engine is started again, up to three times in all, when its 16 requests did not arrive
together.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from evolution.checks import resolve_args
from evolution.environment import environment
from experiments.bench.distribute_engine import Arm, measure_engine
from experiments.bench.distribute_floor import FLOORS
from experiments.bench.distribute_turns import Turns
from experiments.bench.mechanism_ranks import Block, Phase
from experiments.bench.mechanism_run import measure
from experiments.bench.option_lists import check_repeats, numbers
from experiments.bench.rounds import median, pooled, spread, spread_verdict
from experiments.bench.verdicts import combined, in_words
from experiments.intervals import pairwise_ratio, shown, verdict

AT_MOST = 1.3
OWN_AT_MOST = 400.0  # us
RANKS = "2,4"
# Of a mechanism, that warm up and that count.
STEPS = {"0": (40, 240), "16": (4, 24)}
KINDS = {"0": "0", "0, streams": "0", "16": "16"}  # of turns, and the payload of the mechanism
JUDGED = ("0", "16")

ARMS = (
    Arm("rpyc", "rpyc", "rank0", "rpyc plan, execute"),
    Arm("rpyc replicated", "rpyc", "replicated", "rpyc step"),
    Arm("broadcast", "broadcast", "replicated", "gloo-msgpack"),
    Arm("peer", "peer", "replicated", "gloo-msgpack"),
)
Samples = dict[tuple[str, int, str], list[Any]]  # (arm, T, kind) -> one value a round


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default=RANKS, help=f"values of T, from 2; default: {RANKS}")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--out", metavar="DIR", help="write distribute.png and distribute.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    ranks = check_options(options)
    print(f"T = {options.ranks}, {options.repeats} rounds: about {options.repeats * len(ranks) * 38} s", flush=True)
    engine: Samples = {}
    floor: Samples = {}
    own: list[dict[str, Any]] = []
    before: dict[tuple[str, int], dict[str, Turns]] = {}  # of an arm, in the round before
    for repeat in range(options.repeats):
        for count in ranks:
            for arm in ARMS if repeat % 2 == 0 else ARMS[::-1]:
                if repeat % 2:
                    bare = measure_floor(arm, count, before[arm.name, count])
                turns, cpu_us = measure_engine(arm, count, repeat)
                if repeat % 2 == 0:
                    bare = measure_floor(arm, count, turns)
                before[arm.name, count] = turns
                own.append({"stage": arm.name, "ranks": count, "cpu_us": cpu_us})
                for kind, payload in KINDS.items():
                    engine.setdefault((arm.name, count, kind), []).append(turns[kind])
                    pair = bare[payload, False], bare[payload, True]
                    floor.setdefault((arm.name, count, kind), []).append(pair)
    result = {
        "bench": "distribute",
        "unit": "us",
        "repeats": options.repeats,
        "ranks": ranks,
        "cells": [judge(arm, count, kind, engine, floor) for count in ranks for arm in ARMS for kind in KINDS],
        "own": own_work(own),
        "environment": environment(resolve_args(EngineArgs(device="sim"))[0]),
    }
    result["verdict"] = combined(one["verdict"] for one in result["cells"] + result["own"])
    return result


def check_options(options: argparse.Namespace) -> list[int]:
    """Values of T. ValueError of one line."""
    check_repeats(options.repeats)
    expected = f"expected numbers out of 2, 4, 8, as in {RANKS}"
    ranks = sorted(numbers("--ranks", options.ranks, 2, expected))
    if not set(ranks) <= {2, 4, 8}:
        raise ValueError(f"--ranks {options.ranks!r}: {expected}")
    return ranks


# ---------------------------------------------------------------------- the mechanism


def measure_floor(arm: Arm, ranks: int, turns: dict[str, Turns]) -> dict[tuple[str, bool], list[float]]:
    """us of each step, by payload and whether the ranks are busy; after pauses as long as the engine's."""
    keys = [(payload, busy) for busy in (False, True) for payload in STEPS]
    blocks = []
    for payload, busy in keys:
        work = turns[payload].planning / 1e6 if busy and arm.scheduling == "replicated" else 0.0
        blocks.append(Block(payload, *STEPS[payload], pace=median(turns[payload].pause) / 1e6, work=work))
    phases = [Phase(0, arm.floor, ranks, "msgpack", tuple(blocks), False)]
    samples, _ = measure("bench distribute", {arm.floor: FLOORS[arm.floor]}, phases, timeout=120)
    return {key: one.wall for key, one in zip(keys, samples, strict=True)}


# ---------------------------------------------------------------------- judging


def judge(arm: Arm, ranks: int, kind: str, engine: Samples, floor: Samples) -> dict[str, Any]:
    rounds, bare = engine[arm.name, ranks, kind], floor[arm.name, ranks, kind]
    walls = [median(one.wall) for one in rounds]
    with_late = [median(np.add(one.wall, np.maximum(one.late, 0))) for one in rounds]
    plain, busy = ([median(pair[which]) for pair in bare] for which in (0, 1))
    ratio, ratio_busy = pairwise_ratio(walls, plain), pairwise_ratio(walls, busy)
    return {
        "stage": arm.name,
        "mechanism": arm.floor,
        "ranks": ranks,
        "kind": kind,
        "wall": [one.wall for one in rounds],
        "late": [one.late for one in rounds],
        "pause": [one.pause for one in rounds],
        "planning": [one.planning for one in rounds],
        "floor": [pair[0] for pair in bare],
        "floor_busy": [pair[1] for pair in bare],
        "ratio": ratio,
        "ratio_busy": ratio_busy,
        "ratio_with_late": pairwise_ratio(with_late, plain),
        "verdict": verdict(ratio, at_most=AT_MOST) if kind in JUDGED else None,
        "verdict_busy": verdict(ratio_busy, at_most=AT_MOST) if kind in JUDGED else None,
    }


def own_work(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per stage at T=2: us of rank 0's CPU in each round, its parts averaged."""
    judged = []
    for arm in ARMS:
        rounds = [row["cpu_us"] for row in rows if row["stage"] == arm.name and row["ranks"] == 2]
        if rounds:
            totals = [sum(one.values()) for one in rounds]
            names = list(dict.fromkeys(name for one in rounds for name in one))
            parts = {name: float(np.mean([one.get(name, 0.0) for one in rounds])) for name in names}
            total = spread(totals)
            said = spread_verdict(total, at_most=OWN_AT_MOST)
            judged.append({"stage": arm.name, "totals": totals, "total": total, "parts": parts, "verdict": said})
    return judged


def show(result: dict[str, Any]) -> None:
    console = Console()
    for ranks in result["ranks"]:
        title = f"T = {ranks}: us until every rank has a turn's input, medians; at most {AT_MOST:g} times the mechanism"
        judged = _new_table(title, ("engine", "bare", "ratio", "verdict", "late"))
        explained = _new_table(f"T = {ranks}: what explains it", ("with late", "busy", "ratio", "verdict"))
        for cell in (cell for cell in result["cells"] if cell["ranks"] == ranks):
            names = ("wall", "floor", "late", "floor_busy")
            wall, floor, late, busy = (f"{median(pooled(cell[name])):.0f}" for name in names)
            head = cell["stage"], cell["kind"]
            judged.add_row(*head, wall, floor, shown(cell["ratio"]), cell["verdict"] or "", late)
            ratios = [shown(cell[name]) for name in ("ratio_with_late", "ratio_busy")]
            explained.add_row(*head, ratios[0], busy, ratios[1], cell["verdict_busy"] or "")
        console.print(judged)
        console.print(explained)
    console.print(
        "bare, busy: the mechanism between ranks that do nothing, and between ranks that burn what planning takes;"
        " late: how long after rank 0 began to send the last rank came (negative: before it), which is not in"
        " `engine`; with late: the ratio to bare if it were. The verdict of the first table counts; that on the ratio"
        " to busy ranks only explains it.",
        soft_wrap=True,
    )
    console.print("ratios: " + in_words(cell["verdict"] for cell in result["cells"] if cell["kind"] in JUDGED))
    console.print("to busy: " + in_words(cell["verdict_busy"] for cell in result["cells"] if cell["kind"] in JUDGED))
    for one in result["own"]:
        parts = ", ".join(f"{name} {cpu:.0f}" for name, cpu in one["parts"].items())
        total = one["total"]
        console.print(
            f"{one['stage']}, T = 2: CPU of rank 0, and of a router, in a decode turn but the forward and the above:"
            f" {total['median']:.0f} [{total['low']:.0f}, {total['high']:.0f}] us (at most {OWN_AT_MOST:g}:"
            f" {one['verdict']}): {parts}",
            soft_wrap=True,
        )


def _new_table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("stage", "new", *columns):
        table.add_column(column, justify="left" if column in ("stage", "verdict") else "right", no_wrap=True)
    return table
