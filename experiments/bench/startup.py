"""`bench startup`: from nothing to the first token, against importing torch once.

    import torch    a fresh interpreter, until torch is imported
    two imports     two of them side by side, until the later one is done: below this no engine of two ranks can get
    peer, rpyc, broadcast
                    a fresh interpreter that builds an Engine of two ranks on `tiny`, until its first token is there

Clocks start before the interpreter does. Every process of an engine says when it reached the steps of its start, on
the clock that all processes of the host share; the parts below are those of the rank that was ready last, and add up.

The second import needs a core of its own. Where two imports take much longer than one (the host has one core, or
neighbours use them), so does every engine of two ranks: then judge by the ratio to two imports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from evolution.checks import resolve_args
from evolution.environment import environment
from experiments.bench.option_lists import check_once, check_repeats
from experiments.bench.rounds import median
from experiments.bench.verdicts import combined, in_words
from experiments.intervals import pairwise_ratio, remark, shown, verdict

ONE, TWO = "import torch", "two imports"
STAGES = ("peer", "rpyc", "broadcast")
TARGETS = {"peer": 1.6, "rpyc": 2.0}  # times as long as importing torch
IMPORT = "import torch, time; print(time.monotonic())"
CORE_MISSING_FROM = 1.3  # two imports over one
PARTS = (
    "main: interpreter",
    "main: imports",
    "main: checks",
    "until the rank is spawned",
    "rank: interpreter",
    "rank: imports",
    "rank: weights, meeting the others",
    "until main is ready",
    "first turn",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=9, help="starts of each arm (default: 9)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all three")
    parser.add_argument("--out", metavar="DIR", help="write startup.png and startup.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    check_repeats(options.repeats)
    check_once("--stages", options.stages)
    args, _ = resolve_args(EngineArgs(model_path="tiny", tp_size=2))  # also makes `tiny`, if it is not there yet
    _time_imports(1)  # the first reads files from disk
    once = _time_imports(1)
    print(f"{2 + len(options.stages)} arms, {options.repeats} repeats: about {measured_seconds(once, options):.0f} s")
    result = measure(options.stages, options.repeats)
    return {**result, "environment": environment(args)}


def measured_seconds(once: float, options: argparse.Namespace) -> float:
    """Two imports and a start take up to twice as long as one import."""
    return options.repeats * once * (3 + 2 * len(options.stages))


def measure(stages: list[str], repeats: int) -> dict[str, Any]:
    samples: dict[str, list[float]] = {arm: [] for arm in (ONE, TWO, *stages)}
    parts: dict[str, list[dict[str, float]]] = {stage: [] for stage in stages}
    starts: dict[str, list[dict[str, Any]]] = {stage: [] for stage in stages}
    for _ in range(repeats):
        samples[ONE].append(_time_imports(1))
        samples[TWO].append(_time_imports(2))
        for stage in stages:
            processes = start_once(stage)
            samples[stage].append(processes["main"]["first token"])
            parts[stage].append(split(processes))
            starts[stage].append(processes)
    ratios = {arm: pairwise_ratio(samples[arm], samples[ONE]) for arm in samples if arm != ONE}
    verdicts = {stage: verdict(ratios[stage], at_most=TARGETS[stage]) for stage in stages if stage in TARGETS}
    return {
        "bench": "startup",
        "unit": "s",
        "samples": samples,
        "parts": parts,
        "starts": starts,
        "ratios": ratios,
        "ratios_to_two_imports": {stage: pairwise_ratio(samples[stage], samples[TWO]) for stage in stages},
        "targets": {stage: TARGETS[stage] for stage in verdicts},
        "verdicts": verdicts,
        "verdict": combined(verdicts.values()),
    }


def _time_imports(count: int) -> float:
    """Seconds until `count` interpreters, started together, have imported torch."""
    began = time.monotonic()
    processes = [
        subprocess.Popen([sys.executable, "-c", IMPORT], stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    outputs = [process.communicate()[0] for process in processes]
    return max(float(output) for output in outputs) - began


def start_once(stage: str) -> dict[str, dict[str, float]]:
    """Process name -> step -> seconds since before the main process's interpreter started. RuntimeError if it fails."""
    code = f"from experiments.bench.start_probe import probe; probe({stage!r}, 2, 'tiny')"
    began = time.monotonic()
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"the engine of stage {stage} did not start:\n{process.stderr}")
    found = json.loads(process.stdout)["processes"]
    return {name: {step: when - began for step, when in times.items()} for name, times in found.items()}


def split(processes: dict[str, dict[str, float]]) -> dict[str, float]:
    """Seconds of each of PARTS, up to the first token, by way of the rank that was loaded last."""
    main = processes["main"]
    rank = max((times for times in processes.values() if "loaded" in times), key=lambda times: times["loaded"])
    steps = [main["running"], main["imported"], main["checked"], rank["spawned"], rank["running"], rank["imported"]]
    steps += [rank["loaded"], main["ready"], main["first token"]]
    return dict(zip(PARTS, np.diff([0.0, *steps]).tolist(), strict=True))


def show(result: dict[str, Any]) -> None:
    console = Console()
    stages = list(result["parts"])
    table = Table(title="start to first token, TP 2 on tiny; ratios of pairs, median [95% interval]")
    for column in ("", "s", "/ import torch", "target", "", "/ two imports"):
        table.add_column(column, justify="right" if column else "left")
    for arm, seconds in result["samples"].items():
        ratio, to_two = result["ratios"].get(arm), result["ratios_to_two_imports"].get(arm)
        target = result["targets"].get(arm)
        table.add_row(
            arm,
            f"{median(seconds):.2f}",
            shown(ratio) if ratio else "1",
            f"<= {target:g}" if target else "",
            result["verdicts"].get(arm) or (remark(ratio) if ratio else ""),
            shown(to_two) if to_two else "",
        )
    console.print(table)
    console.print("targets: " + in_words(result["verdicts"].values()))
    table = Table(title="where it goes: seconds on the way of the last rank, median")
    table.add_column("")
    for stage in stages:
        table.add_column(stage, justify="right")
    for part in PARTS:
        table.add_row(part, *(f"{median([p[part] for p in result['parts'][stage]]):.2f}" for stage in stages))
    console.print(table)
    if result["ratios"][TWO]["median"] > CORE_MISSING_FROM:
        console.print(
            f"two imports take {result['ratios'][TWO]['median']:.2f} times one: there is no second core free for the"
            " second rank, so the ratio to one import says more about the machine than about the engine",
            soft_wrap=True,
        )
