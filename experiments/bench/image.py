"""`bench image`: what a request with an image costs at two ranks, with the constants of each era and with `level`.

Requests of 16 token ids and 1 KiB to 16 MiB of random bytes, one after the other, on the simulated accelerator:

    whole       from the hand-over in the main process until the last rank has taken the request in
    distribute  the part of it after rank 0 or the router has begun to encode: to every rank
    CPU         user and system time of all processes, from the hand-over to the only token
    bytes, messages   of the two hops (main to stage, stage to the ranks), counted in the same code in a pass of its own

An era's engine spins or sleeps between two looks; both are in its figures. All plan `replicated`, as all versions did:
with `rank0` only rank 0 would be sent the image. Hashing the image (SHA-256) comes before the hand-over, and is the
same in all of them.

`hash` is a request that brings the 32 bytes of an image's hash in place of the image: what would travel if the same
image came again and only its hash were sent. Looking the image up on the ranks is not built: this is the price of the
message alone.

At 4 MiB era over level must be at least 50 for broadcast and 4 for rpyc, of the distribute part and of the whole.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from common.os_accounts import process_cpu_ns
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.bench.distribute_turns import RunTrace, median
from experiments.bench.mechanism_payloads import IMAGES
from experiments.bench.mechanism_ranks import Block, Phase
from experiments.bench.mechanism_run import measure
from experiments.bench.mechanism_stages import (
    GlooBuffer,
    GlooList,
    GlooMsgpack,
    RpycReference,
    RpycValue,
    ZmqIpc,
    ZmqTcp,
)
from experiments.bench.process_ids import pids_of
from experiments.intervals import pairwise_ratio, remark, shown, verdict
from report.trace import load

TP = 2
CONSTANTS = ("era", "level")
# (the channel from main, its codec, the way to the ranks)
HOPS = {
    ("rpyc", "era"): (ZmqTcp, "pickle", RpycReference),
    ("rpyc", "level"): (ZmqIpc, "msgpack", RpycValue),
    ("broadcast", "era"): (ZmqTcp, "pickle", GlooList),
    ("broadcast", "level"): (ZmqIpc, "msgpack", GlooMsgpack),
    ("peer", "era"): (ZmqIpc, "pickle", GlooBuffer),
    ("peer", "level"): (ZmqIpc, "msgpack", GlooMsgpack),
}
CHECKED = "4 MiB"
AT_LEAST = {"broadcast": 50.0, "rpyc": 4.0}
PARTS = ("whole", "distribute", "cpu")
MEASURED = 5  # requests of a size in a round, after one that is not; fewer of the large ones
FEWER = {"1 MiB": 3, "4 MiB": 3, "16 MiB": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"default: {','.join(STAGES)}")
    parser.add_argument("--sizes", default=",".join(IMAGES), help=f"names as in the table; default: {','.join(IMAGES)}")
    parser.add_argument("--out", metavar="DIR", help="write image.png and image.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    stages, sizes = check_options(options)
    seconds = 15 + options.repeats * sum(16 if stage == "broadcast" else 11 for stage in stages)
    print(f"{len(stages)} stages, era and level, {options.repeats} rounds: about {seconds} s", flush=True)
    samples: dict[tuple[str, str, str], list[dict[str, list[float]]]] = {}
    for repeat in range(options.repeats):
        for stage in stages:
            for constants in CONSTANTS if repeat % 2 == 0 else CONSTANTS[::-1]:
                for size, one in measure_engine(stage, constants, sizes, repeat).items():
                    samples.setdefault((stage, constants, size), []).append(one)
    counts = count_hops(stages, sizes)
    cells = [
        {
            "stage": stage,
            "constants": constants,
            "size": size,
            **{part: [one[part] for one in rounds] for part in PARTS},
            **counts[stage, constants, size],
        }
        for (stage, constants, size), rounds in samples.items()
    ]
    ratios = judge(cells, stages)
    result = {
        "bench": "image",
        "unit": "s, a list for each round",
        "repeats": options.repeats,
        "stages": stages,
        "sizes": {size: IMAGES[size] for size in sizes},
        "cells": cells,
        "ratios": ratios,
        "again": same_again(cells, stages),
        "holds": all(one["holds"] for one in ratios),
        "environment": environment(resolve_args(EngineArgs(device="sim", tp_size=TP))[0]),
    }
    if options.out:
        from experiments.bench.image_plot import draw

        result["pictures"] = draw(result, Path(options.out))
    return result


def check_options(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Stages and sizes, in their own order. ValueError of one line."""
    if options.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {options.repeats}")
    for flag, given, known in (("--stages", options.stages, STAGES), ("--sizes", options.sizes, IMAGES)):
        for name in given.split(","):
            if name not in known:
                raise ValueError(f"{flag}: there is no {name!r}; there are {', '.join(known)}")
    return (
        [name for name in STAGES if name in options.stages.split(",")],
        [name for name in IMAGES if name in options.sizes.split(",")],
    )


# ---------------------------------------------------------------------- measuring


def measure_engine(stage: str, constants: str, sizes: list[str], repeat: int) -> dict[str, dict[str, list[float]]]:
    """For each size the seconds of each request: PARTS."""
    rng = np.random.default_rng(repeat)
    cpu: dict[int, float] = {}
    numbers: dict[str, list[int]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="evo-trace-") as folder:
        with Engine(
            stage=stage, tp_size=TP, scheduling="replicated", constants=constants, device="sim", trace_dir=folder
        ) as engine:
            for size in sizes:
                send_one(engine, size, rng)  # the first of a size meets memory that nobody has touched yet
                for _ in range(FEWER.get(size, MEASURED)):
                    number, seconds = send_one(engine, size, rng)
                    numbers[size].append(number)
                    cpu[number] = seconds
        walls = walls_of(Path(folder))
    return {
        size: {
            "whole": [walls[number][0] for number in chosen],
            "distribute": [walls[number][1] for number in chosen],
            "cpu": [cpu[number] for number in chosen],
        }
        for size, chosen in numbers.items()
    }


def send_one(engine: Engine, size: str, rng: np.random.Generator) -> tuple[int, float]:
    """The number in its id, and the CPU seconds of all processes until its token is here."""
    data = rng.bytes(IMAGES[size])
    if size == "hash":
        data = hashlib.sha256(data).digest()
    ids = rng.integers(0, engine.model_config.vocab_size, (1, 16)).tolist()
    requests = engine.make_requests(None, {"max_new_tokens": 1, "ignore_eos": True}, ids, [data])[1]
    pids = pids_of(engine)
    before = sum(process_cpu_ns(pid) for pid in pids)
    (stream,) = engine.submit(requests)
    stream.result()
    used = (sum(process_cpu_ns(pid) for pid in pids) - before) / 1e9
    return int(re.search(r"\d+$", stream.rid).group()), used


def walls_of(folder: Path) -> dict[int, tuple[float, float]]:
    """For each request's number the seconds from its hand-over until the last rank had it, and from when rank 0 or the
    router had begun to encode it."""
    threads = load(folder)
    trace = RunTrace(threads)
    handed = {r.value: r.wall_ns for t in threads if t.process == "main" for r in t.requests if r.name == "received"}
    had: dict[int, list[int]] = {}
    for rank in trace.ranks:
        for record in rank.requests:
            had.setdefault(record.value, []).append(record.wall_ns)
    walls = {}
    for number, times in had.items():
        encoding = trace.encoding_began(times[0])
        walls[number] = (max(times) - handed[number]) / 1e9, (max(times) - encoding) / 1e9
    return walls


def count_hops(stages: list[str], sizes: list[str]) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Messages and bytes of a request, first of the hop from main, then of that to the ranks."""
    chosen = {key: hops for key, hops in HOPS.items() if key[0] in stages}
    ways = {(channel, codec) for channel, codec, _ in chosen.values()} | {(way, "") for _, _, way in chosen.values()}
    blocks = tuple(Block(size, 1, 1) for size in sizes)
    ordered = sorted(ways, key=lambda way: (way[0].name, way[1]))
    phases = [Phase(n, way.name, TP, codec, blocks, True) for n, (way, codec) in enumerate(ordered)]
    mechanisms = {way.name: way for way, _ in ordered}
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    samples = measure("bench image", mechanisms, phases, timeout=120)[0]
    for phase in phases:
        for block in phase.blocks:
            messages, nbytes, *_ = samples[len(found)].counts
            found[phase.mechanism, phase.codec, block.payload] = messages, nbytes
    counts = {}
    for (stage, constants), (channel, codec, way) in chosen.items():
        for size in sizes:
            first, second = found[channel.name, codec, size], found[way.name, "", size]
            counts[stage, constants, size] = {"messages": [first[0], second[0]], "bytes": [first[1], second[1]]}
    return counts


# ---------------------------------------------------------------------- judging


def medians(cells: list[dict[str, Any]], stage: str, constants: str, size: str, part: str) -> list[float] | None:
    """Of each round; None where it was not measured."""
    for cell in cells:
        if (cell["stage"], cell["constants"], cell["size"]) == (stage, constants, size):
            return [median(one) for one in cell[part]]
    return None


def judge(cells: list[dict[str, Any]], stages: list[str]) -> list[dict[str, Any]]:
    """Era over level at CHECKED."""
    judged = []
    for stage in stages:
        for part in PARTS:
            era, level = (medians(cells, stage, constants, CHECKED, part) for constants in CONSTANTS)
            if era is None or level is None:
                continue
            ratio = pairwise_ratio(era, level)
            least = AT_LEAST.get(stage) if part != "cpu" else None
            judged.append({"stage": stage, "part": part, "at_least": least, "ratio": ratio})
            judged[-1]["verdict"] = verdict(ratio, at_least=least) if least else ""
            judged[-1]["holds"] = least is None or ratio["median"] >= least
    return judged


def same_again(cells: list[dict[str, Any]], stages: list[str]) -> list[dict[str, Any]]:
    """The image's bytes over its hash alone, at CHECKED."""
    rows = []
    for stage in stages:
        for constants in CONSTANTS:
            image = medians(cells, stage, constants, CHECKED, "whole")
            digest = medians(cells, stage, constants, "hash", "whole")
            if image and digest:
                rows.append({"stage": stage, "constants": constants, "ratio": pairwise_ratio(image, digest)})
    return rows


def show(result: dict[str, Any]) -> None:
    console = Console()
    console.print(_table(result, "messages of a request, main to stage + stage to ranks", _shown_counts("messages")))
    console.print(_table(result, "bytes of them", _shown_counts("bytes")))
    for part, title in (
        ("whole", "ms from hand-over until every rank has it, median"),
        ("distribute", "ms of it from rank 0 or the router to every rank"),
        ("cpu", "CPU ms of all processes, to the token"),
    ):
        console.print(_table(result, title, lambda cell, part=part: f"{_median(cell[part]) * 1e3:.3g}"))
    for one in result["ratios"]:
        aim = f" (at least {one['at_least']:g}: {one['verdict']})" if one["at_least"] else ""
        ratio = one["ratio"]
        console.print(
            f"{one['stage']}, {CHECKED}, {one['part']}: era over level {shown(ratio)}{aim} {remark(ratio)}".rstrip(),
            soft_wrap=True,
        )
    for one in result["again"]:
        console.print(
            f"{one['stage']} {one['constants']}, whole: {CHECKED} over its hash alone {shown(one['ratio'])}",
            soft_wrap=True,
        )
    for path in result.get("pictures", []):
        console.print(f"picture: {path}", soft_wrap=True)


def _median(rounds: list[list[float]]) -> float:
    return float(np.median(np.concatenate(rounds)))


def _shown_counts(name: str) -> Any:
    return lambda cell: "+".join(f"{count:.0f}" for count in cell[name])


def _table(result: dict[str, Any], title: str, shown_cell: Any) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    arms = [(stage, constants) for stage in result["stages"] for constants in CONSTANTS]
    table.add_column("", no_wrap=True)
    for stage, constants in arms:
        table.add_column(f"{stage}\n{constants}", justify="right", no_wrap=True)
    cells = {(cell["stage"], cell["constants"], cell["size"]): cell for cell in result["cells"]}
    for size in result["sizes"]:
        table.add_row(size, *(shown_cell(cells[stage, constants, size]) for stage, constants in arms))
    return table
