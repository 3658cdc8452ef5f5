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
One engine's ratio may be a quarter off the median of many, so there are more rounds than elsewhere.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from evolution.checks import resolve_args
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.bench.image_measure import CONSTANTS, PARTS, TP, count_hops, measure_engine
from experiments.bench.mechanism_payloads import IMAGES
from experiments.bench.option_lists import check_repeats, names
from experiments.bench.rounds import median, medians, pooled
from experiments.bench.verdicts import combined, in_words
from experiments.intervals import pairwise_ratio, remark, shown, verdict

CHECKED = "4 MiB"
AT_LEAST = {"broadcast": 50.0, "rpyc": 4.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default: 15)")
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
    return {
        "bench": "image",
        "unit": "s, a list for each round",
        "repeats": options.repeats,
        "stages": stages,
        "sizes": {size: IMAGES[size] for size in sizes},
        "cells": cells,
        "ratios": ratios,
        "again": same_again(cells, stages),
        "verdict": combined(one["verdict"] for one in ratios),
        "environment": environment(resolve_args(EngineArgs(device="sim", tp_size=TP))[0]),
    }


def check_options(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Stages and sizes, in their own order. ValueError of one line."""
    check_repeats(options.repeats)
    return names("--stages", options.stages, STAGES), names("--sizes", options.sizes, IMAGES)


# ---------------------------------------------------------------------- judging


def medians_of(cells: list[dict[str, Any]], stage: str, constants: str, size: str, part: str) -> list[float] | None:
    """Of each round; None where it was not measured."""
    for cell in cells:
        if (cell["stage"], cell["constants"], cell["size"]) == (stage, constants, size):
            return medians(cell[part])
    return None


def judge(cells: list[dict[str, Any]], stages: list[str]) -> list[dict[str, Any]]:
    """Era over level at CHECKED."""
    judged = []
    for stage in stages:
        for part in PARTS:
            era, level = (medians_of(cells, stage, constants, CHECKED, part) for constants in CONSTANTS)
            if era is None or level is None:
                continue
            ratio = pairwise_ratio(era, level)
            least = AT_LEAST.get(stage) if part != "cpu" else None
            judged.append({"stage": stage, "part": part, "at_least": least, "ratio": ratio})
            judged[-1]["verdict"] = verdict(ratio, at_least=least) if least else None
    return judged


def same_again(cells: list[dict[str, Any]], stages: list[str]) -> list[dict[str, Any]]:
    """The image's bytes over its hash alone, at CHECKED."""
    rows = []
    for stage in stages:
        for constants in CONSTANTS:
            image = medians_of(cells, stage, constants, CHECKED, "whole")
            digest = medians_of(cells, stage, constants, "hash", "whole")
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
        console.print(_table(result, title, lambda cell, part=part: f"{median(pooled(cell[part])) * 1e3:.3g}"))
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
    console.print("bounds: " + in_words(one["verdict"] for one in result["ratios"]))


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
