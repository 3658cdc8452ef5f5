"""`bench overlap`: the peer stage's loop that plans while the forward runs (`--overlap`) against its normal loop.

A repeat starts an engine with each loop, one after the other, and the first one is the second every other time. Each
takes the same batches: so many requests of 128 random token ids at once, 128 tokens each, several batches of each size,
each on an empty cache. The forward is simulated: it takes no core, as on a GPU, so that scheduling can hide behind it.

    TPOT, TTFT   the median over the requests of a batch
    turn         of a decode step: from the first to the last token of the request that got its first token last, from
                 when on all requests are in the batch, over the tokens after the first
    predicted    the forward of such a turn, on average: no loop can be faster
    control      turn - predicted - late: what the forward leaves uncovered of everything else in a turn. Late is how
                 much too late the kernel ends the simulation's sleep, on average of the decode steps. When the thread
                 of the forwards then waits for the interpreter, since the other one plans, that is a cost of the
                 overlap loop, and stays in
    hidden       (control normal - control overlap) / control normal

A sample is the median over the batches of one engine; a ratio is of two samples of one repeat. What is claimed is that
the tokens are the same; how much is hidden is measured. The verdict of a size is on TPOT: no longer with overlap.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from common.sim.profiles import DEFAULT_PROFILE, load_profile
from common.sim.roofline import Roofline
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.metrics import collect
from experiments.bench.rounds import spread
from experiments.intervals import pairwise_ratio, remark, shown, verdict

ARMS = ("normal", "overlap")
INPUT_LEN, OUTPUT_LEN = 128, 128
BATCHES = 3  # of each size in one engine
SAMPLING = {"temperature": 0, "max_new_tokens": OUTPUT_LEN, "ignore_eos": True}
FIGURES = ("tpot", "ttft", "turn", "late")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="1,16,64,128", help="requests at once (default: 1,16,64,128)")
    parser.add_argument("--tp-size", type=int, default=1, help="default: 1")
    parser.add_argument("--sim-profile", default=DEFAULT_PROFILE, help=f"as of `run` (default: {DEFAULT_PROFILE})")
    parser.add_argument("--repeats", type=int, default=9, help="pairs of engines (default: 9)")
    parser.add_argument("--out", metavar="DIR", help="write overlap.png and overlap.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    sizes = _sizes(options.sizes)
    if options.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {options.repeats}")
    settings = {"device": "sim", "sim_profile": options.sim_profile, "tp_size": options.tp_size}
    args, config = resolve_args(EngineArgs(**settings))
    if max(sizes) > args.max_running_requests:
        raise ValueError(f"--sizes {options.sizes}: at most {args.max_running_requests} requests run at once")
    print(f"{options.repeats} repeats of two engines: about {options.repeats * (8 + 0.02 * sum(sizes)):.0f} s")
    samples = {str(size): {arm: {name: [] for name in FIGURES} for arm in ARMS} for size in sizes}
    identical = True
    for repeat in range(options.repeats):
        tokens = {}
        for arm in ARMS if repeat % 2 else ARMS[::-1]:
            with Engine(stage="peer", overlap=arm == "overlap", **settings) as engine:
                taken, tokens[arm] = measure(engine, sizes, config.vocab_size, repeat)
            for size, figures in taken.items():
                for name, value in figures.items():
                    samples[size][arm][name].append(value)
        identical = identical and tokens["normal"] == tokens["overlap"]
    floor = {str(size): predicted_seconds(args, size) for size in sizes}
    return {
        "bench": "overlap",
        "unit": "s",
        "samples": samples,
        "predicted": floor,
        "sizes": {size: judge(samples[size], floor[size]) for size in samples},
        "tokens_identical": identical,
        "verdict": None if identical else "fails",
        "environment": environment(args),
    }


def _sizes(text: str) -> list[int]:
    if not all(part.isascii() and part.isdigit() and int(part) for part in text.split(",")):
        raise ValueError(f"--sizes {text!r}: give numbers of requests separated by commas, like 1,16")
    sizes = [int(part) for part in text.split(",")]
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--sizes {text!r}: give each number of requests once")
    return sizes


def measure(
    engine: Engine, sizes: list[int], vocab: int, repeat: int
) -> tuple[dict[str, dict[str, float]], list[list[int]]]:
    """By size, the median over the batches of each figure, in seconds; and the tokens of all requests."""
    warm_up = np.random.default_rng(repeat).integers(0, vocab, (max(sizes), INPUT_LEN)).tolist()
    engine.generate(input_ids=warm_up, sampling_params=SAMPLING | {"max_new_tokens": 8})
    taken, tokens = {}, []
    for size in sizes:
        batches = []
        for batch in range(BATCHES):
            prompts = np.random.default_rng((repeat, size, batch)).integers(0, vocab, (size, INPUT_LEN)).tolist()
            engine.flush_cache()
            before = engine.stats()[0]
            streams = engine.submit(engine.make_requests(None, SAMPLING, prompts, stream=True)[1])
            tokens += [stream.result()["output_ids"] for stream in streams]
            after = engine.stats()[0]
            late, decodes = (after[name] - before[name] for name in ("sim_decode_late_seconds", "sim_decodes"))
            latencies = collect(streams)
            last = max(streams, key=lambda stream: stream.arrivals[0][0])
            turn = (last.arrivals[-1][0] - last.arrivals[0][0]) / (OUTPUT_LEN - 1)
            batches.append((np.median(latencies.tpot), np.median(latencies.ttft), turn, late / decodes))
        taken[str(size)] = dict(zip(FIGURES, np.median(batches, axis=0).tolist(), strict=True))
    return taken, tokens


def predicted_seconds(args: EngineArgs, size: int) -> float:
    """Of a decode step of `size` requests, averaged over all of them."""
    roofline = Roofline(load_profile(args.sim_profile), args.tp_size)
    steps = [roofline.decode_seconds(size, size * (INPUT_LEN + step)) for step in range(1, OUTPUT_LEN)]
    return float(np.mean(steps))


def judge(samples: dict[str, dict[str, list[float]]], predicted: float) -> dict[str, Any]:
    """Overlap over normal, and how much of the control plane's time is hidden: None where a repeat of the normal loop
    left none to hide."""
    ratios = {name: pairwise_ratio(samples["overlap"][name], samples["normal"][name]) for name in ("tpot", "ttft")}
    control = {}
    for arm in ARMS:
        turns = zip(samples[arm]["turn"], samples[arm]["late"], strict=True)
        control[arm] = [turn - predicted - late for turn, late in turns]
    return {
        "ratios": ratios,
        "control": control,
        "hidden": hidden_share(control["overlap"], control["normal"]),
        "verdict": verdict(ratios["tpot"], at_most=1.0),
    }


def hidden_share(overlap: list[float], normal: list[float]) -> dict[str, Any] | None:
    if min(normal) <= 0:
        return None
    return spread([1 - a / b for a, b in zip(overlap, normal, strict=True)])


def show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="Overlap against the normal loop; times are medians, in ms")
    for column in ("requests", "what", "normal", "overlap", "overlap / normal"):
        table.add_column(column, justify="right" if column != "what" else "left")
    for size, judged in result["sizes"].items():
        samples = result["samples"][size]
        for name in ("tpot", "ttft"):
            cells = [_ms(samples[arm][name]) for arm in ARMS]
            table.add_row(size if name == "tpot" else "", name.upper(), *cells, shown(judged["ratios"][name]))
        cells = [_ms(judged["control"][arm]) for arm in ARMS]
        name = f"control, beside {result['predicted'][size] * 1e3:.3f} predicted"
        table.add_row("", name, *cells, _share(judged["hidden"]))
        table.add_section()
    console.print(table)
    for size, judged in result["sizes"].items():
        console.print(f"TPOT at {size}, no longer with overlap: {judged['verdict']}")
        for name, ratio in judged["ratios"].items():
            if remark(ratio):
                console.print(f"{name.upper()} at {size}: {remark(ratio)}", soft_wrap=True)
    console.print("tokens: " + ("identical with both loops" if result["tokens_identical"] else "DIFFERENT"))


def _share(hidden: dict[str, Any] | None) -> str:
    if hidden is None:
        return "nothing to hide in some repeats"
    return f"{hidden['median']:.0%} [{hidden['low']:.0%}, {hidden['high']:.0%}] hidden"


def _ms(seconds: list[float]) -> str:
    return f"{np.median(seconds) * 1e3:.3f}"
