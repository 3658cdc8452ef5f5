"""`bench overhead`: what tracing costs, by the time per output token with it on and off.

A repeat starts an engine without tracing, measures it and stops it, and one with, which comes first every second time;
only one lives at a time. 16
requests of 128 random token ids come at once and get 256 tokens each. On the simulated accelerator the forward takes
no core, so that what tracing takes cannot hide behind it; its time per token is short, so that the share is large.

Beside the ratio: what one call of a trace costs on this machine, and how many a turn of rank 0 makes (with a model two
more than on sim, whose forward is one part).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from common.args import EngineArgs
from common.tracing import Trace, read_trace
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.metrics import collect
from evolution.stages import STAGES
from experiments.bench.compare import pairwise_ratio, remark, shown, verdict

REQUESTS, INPUT_LEN, OUTPUT_LEN = 16, 128, 256
AT_MOST = 1.02
CALLS = 5000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", choices=tuple(STAGES), default="peer", help="default: peer")
    parser.add_argument("--tp-size", type=int, default=1, help="default: 1")
    parser.add_argument("--device", choices=("sim", "cpu"), default="sim", help="default: sim")
    parser.add_argument("--repeats", type=int, default=15, help="pairs of runs (default: 15)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {options.repeats}")
    args, config = resolve_args(EngineArgs(stage=options.stage, tp_size=options.tp_size, device=options.device))
    print(f"{options.repeats} repeats of two engines: about {options.repeats * 6} s")
    tpots: dict[str, list[float]] = {"off": [], "on": []}
    calls: list[float] = []
    for repeat in range(options.repeats):
        prompts = np.random.default_rng(repeat).integers(0, config.vocab_size, (REQUESTS, INPUT_LEN)).tolist()
        for arm in ("off", "on") if repeat % 2 else ("on", "off"):
            with tempfile.TemporaryDirectory(prefix="evo-trace-") as folder:
                tpots[arm].append(time_per_token(options, prompts, folder if arm == "on" else None))
                if arm == "on":
                    calls.append(calls_per_turn(Path(folder)))
    ratio = pairwise_ratio(tpots["on"], tpots["off"])
    return {
        "bench": "overhead",
        "unit": "s per output token, median over the requests of a run",
        "samples": tpots,
        "ratio": ratio,
        "calls_per_turn": float(np.median(calls)),
        "call_us": call_us(),
        "verdict": verdict(ratio, at_most=AT_MOST),
        "holds": ratio["high"] < AT_MOST,
        "environment": environment(args),
    }


def time_per_token(options: argparse.Namespace, prompts: list[list[int]], trace_dir: str | None) -> float:
    """The median TPOT of the requests, in seconds."""
    settings = {"stage": options.stage, "tp_size": options.tp_size, "device": options.device}
    sampling = {"temperature": 0, "max_new_tokens": OUTPUT_LEN, "ignore_eos": True}
    with Engine(**settings, trace_dir=trace_dir) as engine:
        engine.generate(input_ids=prompts, sampling_params={**sampling, "max_new_tokens": 8})
        engine.flush_cache()
        streams = engine.submit(engine.make_requests(None, sampling, prompts, stream=True)[1])
        for stream in streams:
            stream.result()
        return float(np.median(collect(streams).tpot))


def calls_per_turn(folder: Path) -> float:
    """Records per turn of the thread that has most of them: rank 0's."""
    most, turns = 0, 1
    for path in folder.glob("*.trace"):
        _, records = read_trace(path)
        if len(records) > most:
            most, turns = len(records), sum(record.name == "turn" for record in records)
    return most / max(1, turns)


def call_us() -> float:
    """One call of a trace that is on, the fastest of five rounds."""
    fastest = float("inf")
    with tempfile.TemporaryDirectory(prefix="evo-trace-") as folder:
        trace = Trace(Path(folder), "bench", "overhead")
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(CALLS):
                trace.part("forward")
            fastest = min(fastest, (time.perf_counter() - began) / CALLS * 1e6)
            trace.turn()  # writes what has gathered
        trace.close()
    return fastest


def show(result: dict[str, Any]) -> None:
    console = Console()
    ratio, off = result["ratio"], float(np.median(result["samples"]["off"])) * 1e3
    console.print(
        f"TPOT with tracing on over off: {shown(ratio)} (at most {AT_MOST:g}: {result['verdict']}) {remark(ratio)}",
        soft_wrap=True,
    )
    console.print(
        f"TPOT without: {off:.2f} ms; {result['calls_per_turn']:.1f} calls a turn on rank 0, {result['call_us']:.2f} us"
        " each",
        soft_wrap=True,
    )
