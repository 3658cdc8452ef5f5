"""`bench distribute`: what bringing a turn's input to every rank costs in a real engine, over its bare mechanism.

An engine of each stage runs on the simulated accelerator (`--device sim`, constants `level`, tracing on), and in the
same round the mechanism that it uses: the same code, between processes that compute nothing (as in `bench mechanisms`).

    0            a decode turn of 16 running requests, nothing new
    0, streams   the same, while their tokens go on to the detokenizer and the caller, who take part of the cores
    16           a turn that takes in 16 requests of 512 token ids at once

Time of the engine: see `distribute_turns.py`. Of the mechanism: from the driver's having the list to the last rank's
having it, for rpyc with the answer. Both are walls on one monotonic clock. The driver pauses after each
step as long as the engine's ranks did before such a turn, since every mechanism is slower after a longer pause.
The ratio is that of the medians of a round; the median of the rounds must be at most 1.3 where nothing streams: with as
few cores as here the bare mechanism, which has the machine for itself, is no measure for a turn that shares it.

Where there are more ranks than cores, those that have the input plan on the cores that are bringing it to the others.
So the mechanism is measured once more with busy ranks: each burns, as soon as it has the list, the CPU time that an
engine's rank took to plan that turn. With more ranks than cores this ratio is the one that is judged. (With `rank0` the
ranks have nothing to plan when a list arrives, and the two are the same.)

The trace itself is in the engine's time: three to ten calls of about a microsecond.

`--scheduling rank0`, the default of rpyc, makes two calls a turn and sends a plan; `replicated` makes one. Both are
measured. Beside it, at T=2: the CPU time of rank 0 in a decode turn for everything but the forward and this: at most
400 us.
"""

from __future__ import annotations

import argparse
import os
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
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from experiments.bench.distribute_floor import FLOORS, RUNNING
from experiments.bench.distribute_turns import RunTrace, Turns, median
from experiments.bench.mechanism_payloads import PROMPT
from experiments.bench.mechanism_ranks import Block, Phase
from experiments.bench.mechanism_run import measure
from experiments.intervals import pairwise_ratio, shown, verdict
from report.trace import load

AT_MOST = 1.3
OWN_AT_MOST = 400.0  # us
RANKS = "2,4"
DECODE_TURNS = 240
ARRIVALS = 24
FIRST_PROMPT = 2000  # tokens: while it is prefilled, the 16 arrive
# Of a mechanism, that warm up and that count.
STEPS = {"0": (40, 240), "16": (4, 24)}
KINDS = {"0": "0", "0, streams": "0", "16": "16"}  # of turns, and the payload of the mechanism
JUDGED = ("0", "16")


@dataclass(frozen=True)
class Arm:
    name: str
    stage: str
    scheduling: str
    floor: str


ARMS = (
    Arm("rpyc", "rpyc", "rank0", "rpyc plan, execute"),
    Arm("rpyc replicated", "rpyc", "replicated", "rpyc step"),
    Arm("broadcast", "broadcast", "replicated", "gloo-msgpack"),
    Arm("peer", "peer", "replicated", "gloo-msgpack"),
)
Samples = dict[tuple[str, int, str], list[Any]]  # (arm, T, kind) -> one value a round


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default=RANKS, help=f"values of T, from 2; default: {RANKS}")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--out", metavar="DIR", help="write distribute.png and distribute.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    ranks = check_options(options)
    print(f"T = {options.ranks}, {options.repeats} rounds: about {options.repeats * len(ranks) * 38} s", flush=True)
    engine: Samples = {}
    floor: Samples = {}
    own: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        for count in ranks:
            arms = ARMS if repeat % 2 == 0 else ARMS[::-1]
            for arm in arms:
                turns, cpu_us = measure_engine(arm, count, repeat)
                own.append({"stage": arm.name, "ranks": count, "cpu_us": cpu_us})
                bare = measure_floor(arm, count, turns)
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
    result["holds"] = all(one["holds"] for one in result["cells"] + result["own"])
    if options.out:
        from experiments.bench.distribute_plot import draw

        result["pictures"] = draw(result, Path(options.out))
    return result


def check_options(options: argparse.Namespace) -> list[int]:
    """Values of T. ValueError of one line."""
    if options.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {options.repeats}")
    try:
        ranks = sorted({int(word) for word in options.ranks.split(",")})
    except ValueError:
        ranks = []
    if not ranks or not set(ranks) <= {2, 4, 8}:
        raise ValueError(f"--ranks {options.ranks!r}: expected numbers out of 2, 4, 8, as in {RANKS}")
    return ranks


# ---------------------------------------------------------------------- the engine


def measure_engine(arm: Arm, ranks: int, repeat: int) -> tuple[dict[str, Turns], dict[str, float]]:
    """The turns with each payload; the CPU time of rank 0's other parts in a decode turn, us."""
    with tempfile.TemporaryDirectory(prefix="evo-trace-") as folder:
        # Without chunks the 16 prompts are one prefill: one turn takes them in, and its plan holds them all.
        with Engine(
            stage=arm.stage,
            tp_size=ranks,
            scheduling=arm.scheduling,
            device="sim",
            chunked_prefill_size=-1,
            trace_dir=folder,
        ) as engine:
            serve(engine, np.random.default_rng(repeat))
        trace = RunTrace(load(Path(folder)))
    decoding, arrivals = trace.decode_turns(RUNNING), trace.arrival_turns(RUNNING)
    if len(decoding) != 3 or not arrivals:
        raise SystemExit(
            f"bench distribute: {arm.name} at T={ranks}: the 16 requests did not arrive at once; try again"
        )
    chosen = {"0": decoding[1], "0, streams": decoding[2], "16": arrivals}
    return {kind: trace.measure(numbers) for kind, numbers in chosen.items()}, trace.own_cpu_us(decoding[2])


def serve(engine: Engine, rng: np.random.Generator) -> None:
    """16 requests decode side by side; then, so many times, 16 arrive while another one is prefilled."""
    vocab = engine.model_config.vocab_size
    sampling = {"temperature": 0, "ignore_eos": True}

    def requests(count: int, length: int, tokens: int, stream: bool = False) -> list[Any]:
        ids = rng.integers(0, vocab, (count, length)).tolist()
        return engine.make_requests(None, {**sampling, "max_new_tokens": tokens}, ids, stream=stream)[1]

    def finish(streams: list[Any]) -> None:
        for stream in streams:
            stream.result()

    finish(engine.submit(requests(RUNNING, PROMPT, 40)))  # warm
    for stream in (False, True):
        time.sleep(0.1)
        finish(engine.submit(requests(RUNNING, PROMPT, DECODE_TURNS, stream)))
    for _ in range(ARRIVALS):
        first, others = requests(1, FIRST_PROMPT, 8), requests(RUNNING, PROMPT, 1)
        streams = engine.submit(first)
        time.sleep(0.001)  # the first one's turn has begun
        finish(streams + engine.submit(others))


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
    ratio, ratio_busy = (pairwise_ratio(walls, [median(pair[busy]) for pair in bare]) for busy in (0, 1))
    judged = ratio_busy if ranks > len(os.sched_getaffinity(0)) else ratio
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
        "verdict": verdict(judged, at_most=AT_MOST) if kind in JUDGED else "",
        "holds": kind not in JUDGED or judged["median"] <= AT_MOST,
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
            judged.append({"stage": arm.name, "totals": totals, "parts": parts, "holds": median(totals) <= OWN_AT_MOST})
    return judged


def show(result: dict[str, Any]) -> None:
    console = Console()
    for ranks in result["ranks"]:
        title = f"T = {ranks}: us until every rank has a turn's input, medians; at most {AT_MOST:g} times the mechanism"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in ("stage", "new", "turns", "pause", "late", "engine", "bare", "ratio", "busy", "ratio", ""):
            table.add_column(column, justify="left" if column in ("stage", "") else "right", no_wrap=True)
        for cell in (cell for cell in result["cells"] if cell["ranks"] == ranks):
            joined = {name: np.concatenate(cell[name]) for name in ("wall", "late", "pause", "floor", "floor_busy")}
            table.add_row(
                cell["stage"],
                cell["kind"],
                str(len(joined["wall"])),
                *(f"{np.median(joined[name]):.0f}" for name in ("pause", "late", "wall", "floor")),
                shown(cell["ratio"]),
                f"{np.median(joined['floor_busy']):.0f}",
                shown(cell["ratio_busy"]),
                cell["verdict"],
            )
        console.print(table)
    console.print(
        "bare, busy: the mechanism between ranks that do nothing, and between ranks that burn what planning takes;"
        " pause: before it, here and there; late: how long after rank 0 the last rank came to the broadcast (negative:"
        " before it): this is not in `engine`",
        soft_wrap=True,
    )
    for one in result["own"]:
        parts = ", ".join(f"{name} {cpu:.0f}" for name, cpu in one["parts"].items())
        word = "holds" if one["holds"] else "fails"
        console.print(
            f"{one['stage']}, T = 2: rank 0's CPU in a decode turn but the forward and the above:"
            f" {median(one['totals']):.0f} us (at most {OWN_AT_MOST:g}: {word}): {parts}",
            soft_wrap=True,
        )
    for path in result.get("pictures", []):
        console.print(f"picture: {path}", soft_wrap=True)
