"""`bench overhead`: what tracing costs, by the time per output token with it on and off.

A repeat starts two engines, one without tracing and one with, which comes first every second time. Once they are warm
they take turns: a batch on the one, the same on the other, the order changing each time, BATCHES for each; the other
one blocks meanwhile, with `level` constants. So two samples that are compared lie a quarter of a second apart, and the
repeats average over what differs between two starts. A batch is 16 requests of 128 random token ids at once, 256 tokens
for each; its sample is the median of their TPOT. The interval is that of the repeats, by the median ratio of each. On
the simulated accelerator the forward takes no core, so that what tracing takes cannot hide behind it; its time per
token is short, so that the share is large.

So two engines live at once, which benches avoid otherwise (`bench engine` keeps its arms too).

Beside the ratio: what a call of a trace takes on average in a turn like rank 0's, `turn` itself and the writing to the
file included, in a turn whose parts read the CPU clock and in one whose do not; the median of rounds of turns that do
nothing else. And how many calls a turn of rank 0 makes (with a model two more than on sim, whose forward is one part).
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from common.args import EngineArgs
from common.run_folder import run_folder
from common.tracing import SAMPLE_EVERY, Trace, read_trace
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.metrics import collect
from evolution.stages import STAGES
from experiments.bench.engines import finish, start
from experiments.bench.option_lists import check_repeats
from experiments.bench.rounds import median, pooled
from experiments.intervals import pairwise_ratio, remark, shown, verdict

BATCHES, REQUESTS, INPUT_LEN, OUTPUT_LEN = 24, 16, 128, 256
AT_MOST = 1.02
ROUNDS, TURNS = 15, 100 * SAMPLE_EVERY  # of call_us
# What rank 0 of peer calls `part` with in a decode turn on sim.
TURN_PARTS = ("recv_requests", "process_input_requests", "get_next_batch_to_run", "forward", "process_batch_result",
              "send_output")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", choices=tuple(STAGES), default="peer", help="default: peer")
    parser.add_argument("--tp-size", type=int, default=1, help="default: 1")
    parser.add_argument("--device", choices=("sim", "cpu"), default="sim", help="default: sim")
    parser.add_argument("--repeats", type=int, default=16, help="pairs of engines (default: 16)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    check_repeats(options.repeats)
    args, config = resolve_args(EngineArgs(stage=options.stage, tp_size=options.tp_size, device=options.device))
    print(f"{options.repeats} pairs of engines, the two of a pair at once: about {options.repeats * 15} s")
    tpots: dict[str, list[list[float]]] = {"off": [], "on": []}
    calls: list[float] = []
    for repeat in range(options.repeats):
        shape = (BATCHES, REQUESTS, INPUT_LEN)
        batches = np.random.default_rng(repeat).integers(0, config.vocab_size, shape).tolist()
        with run_folder() as folder:
            pair = measure_pair(options, batches, str(folder), ("off", "on") if repeat % 2 else ("on", "off"))
            calls.append(calls_per_turn(folder))
        for arm, samples in pair.items():
            tpots[arm].append(samples)
    ratio = ratio_of_repeats(tpots)
    return {
        "bench": "overhead",
        "unit": "s per output token, median over the requests of a batch; a list of batches for each pair of engines",
        "samples": tpots,
        "ratio": ratio,
        "calls_per_turn": median(calls),
        "call_us": call_us(),
        "verdict": verdict(ratio, at_most=AT_MOST),
        "environment": environment(args),
    }


def ratio_of_repeats(tpots: dict[str, list[list[float]]]) -> dict[str, Any]:
    """As `pairwise_ratio`, whose pairs are here the repeats: of each the median ratio of its batches."""
    above = [pairwise_ratio(on, off)["median"] for on, off in zip(tpots["on"], tpots["off"], strict=True)]
    return pairwise_ratio(above, [1.0] * len(above))


def measure_pair(
    options: argparse.Namespace, batches: list[list[list[int]]], trace_dir: str, order: tuple[str, str]
) -> dict[str, list[float]]:
    """The samples of each batch, without tracing ("off") and with ("on")."""
    tpots: dict[str, list[float]] = {"off": [], "on": []}
    settings = {"stage": options.stage, "tp_size": options.tp_size, "device": options.device}
    with contextlib.ExitStack() as stack:
        engines = {
            arm: stack.enter_context(start(EngineArgs(**settings, trace_dir=trace_dir if arm == "on" else None)))
            for arm in order
        }
        for engine in engines.values():
            time_per_token(engine, batches[0])
        for number, prompts in enumerate(batches):
            for arm in order if number % 2 else reversed(order):
                tpots[arm].append(time_per_token(engines[arm], prompts))
    return tpots


def time_per_token(engine: Engine, prompts: list[list[int]]) -> float:
    """The median TPOT of the requests, in seconds. No prompt is in the cache."""
    engine.flush_cache()
    sampling = {"temperature": 0, "max_new_tokens": OUTPUT_LEN, "ignore_eos": True}
    return median(collect(finish(engine, engine.make_requests(None, sampling, prompts, stream=True)[1])).tpot)


def calls_per_turn(folder: Path) -> float:
    """Records per turn of the thread that has most of them: rank 0's."""
    most, turns = 0, 1
    for path in folder.glob("*.trace"):
        _, records = read_trace(path)
        if len(records) > most:
            most, turns = len(records), sum(record.name == "turn" for record in records)
    return most / max(1, turns)


def call_us() -> dict[str, float]:
    """us of a call of a trace that is on, "sampled" or "other" as its turn is: the mean of a round of turns, so that
    the writing that every so many turns do is shared among them; of the rounds the median."""
    means: dict[str, list[float]] = {"sampled": [], "other": []}
    with run_folder() as folder:
        trace = Trace(folder, "bench", "overhead")
        for _ in range(ROUNDS):
            seconds = {"sampled": 0.0, "other": 0.0}
            for turn in range(TURNS):
                began = time.perf_counter()
                trace.turn()
                for part in TURN_PARTS:
                    trace.part(part)
                seconds["other" if turn % SAMPLE_EVERY else "sampled"] += time.perf_counter() - began
            calls = {"sampled": TURNS // SAMPLE_EVERY, "other": TURNS - TURNS // SAMPLE_EVERY}
            for kind, took in seconds.items():
                means[kind].append(took / calls[kind] / (1 + len(TURN_PARTS)) * 1e6)
        trace.close()
    return {kind: median(of_rounds) for kind, of_rounds in means.items()}


def show(result: dict[str, Any]) -> None:
    console = Console()
    ratio, off = result["ratio"], median(pooled(result["samples"]["off"])) * 1e3
    console.print(
        f"TPOT with tracing on over off: {shown(ratio)} (at most {AT_MOST:g}: {result['verdict']}) {remark(ratio)}",
        soft_wrap=True,
    )
    calls, cost = result["calls_per_turn"], result["call_us"]
    console.print(
        f"TPOT without: {off:.2f} ms; {calls:.1f} calls a turn on rank 0; a call takes {cost['other']:.2f} us, in every"
        f" {SAMPLE_EVERY}th turn, whose parts read the CPU clock, {cost['sampled']:.2f} us: in turns that do nothing"
        " else, `turn` and the writing included",
        soft_wrap=True,
    )
    console.print(
        "Two engines lived at once, against the rule of one at a time: that with tracing and that without took turns,"
        " and the other one blocked",
        soft_wrap=True,
    )
