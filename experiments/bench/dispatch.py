"""`bench dispatch`: data parallelism with requests of very different lengths: who gets them, and how long they wait.

Most requests are short, one in eight is SPREAD times as long. They come in a Poisson stream, at fractions of the rate
that the stage's replicas manage when all requests are there from the start (with round_robin, measured at the
beginning). Each arm is a stage with `level` or `era` constants and a policy:

    round_robin            replicas take turns
    shortest_queue, level  the fewest requests that are handed over and not finished
    shortest_queue, era    as 0.1.17 (rpyc) and 0.2.0 (broadcast) had it: the fewest that a replica has not yet taken in

    share     of each replica, of the requests and of the tokens, from `engine.stats()`
    TTFT, E2E of each request; the tables show the 50th and 95th percentile
    late      how long after its moment a request was sent, at most: the sender itself may be held up, and the time of
              a request counts from when it was sent

The forward is a wait of the simulated accelerator (h100-llama3-8b, about 5 ms), so that replicas do not compete for
cores; at most 4 requests run in each, so that a replica with too many lets them wait. Era engines block when idle
(`--idle block`): spinning is another matter (`bench idle`). A request's output is a quarter of its prompt, so its share
of the prompt tokens is its share of all tokens. Repeats are interleaved; the requests and the moments when they come
are the same in both arms of a stage.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from common.messages import GenerateRequest
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.environment import environment
from evolution.metrics import collect
from experiments.bench.engines import start
from experiments.bench.option_lists import check_once, check_repeats, numbers
from experiments.bench.rounds import median
from experiments.intervals import pairwise_ratio, remark, shown

POLICIES = ("round_robin", "shortest_queue")
# In the words of the command line: stage:constants.
SYSTEMS = "peer:level,broadcast:era,rpyc:era"
SHORT, SPREAD, LONG_EVERY = 16, 20, 8  # prompt tokens of a short request; how much longer a long one is; one in so many
REQUESTS = 24  # of a replica, at each load: so few that 7 repeats take about ten minutes
MOST_RUNNING = 4
PROFILE = "h100-llama3-8b"
TIMES, PERCENTILES = ("ttft", "e2e"), (50, 95)
ENGINE_S = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", default=SYSTEMS, help=f"stage:constants; default: {SYSTEMS}")
    parser.add_argument("--dp-size", default="2,4", metavar="D,..", help="default: 2,4")
    parser.add_argument("--loads", default="0.4,0.8", help="of the capacity; default: 0.4,0.8")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"per replica and load (default: {REQUESTS})")
    parser.add_argument("--repeats", type=int, default=7, help="runs of every arm (default: 7)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    systems, sizes, loads = check_options(options)
    samples, capacities = [], []
    for dp_size in sizes:
        for stage, constants in systems:
            rate = capacity(stage, constants, dp_size, options.requests)
            capacities.append({"stage": stage, "constants": constants, "dp_size": dp_size, "requests_per_s": rate})
    seconds = options.repeats * expected_seconds(capacities, loads, options.requests)
    print(f"about {seconds / 60:.0f} min more", flush=True)
    for repeat in range(options.repeats):
        for one in capacities:
            for policy in POLICIES if repeat % 2 == 0 else POLICIES[::-1]:
                samples += measure(one, policy, loads, options.requests, repeat)
    return {
        "bench": "dispatch",
        "unit": "s",
        "requests_per_replica": options.requests,
        "prompt_tokens": [SHORT, SHORT * SPREAD],
        "long_every": LONG_EVERY,
        "most_running": MOST_RUNNING,
        "loads": loads,
        "capacities": capacities,
        "samples": samples,
        "ratios": ratios_of(samples),
        "verdict": None,  # it has no bound to keep
        "environment": environment(resolve_args(settings("peer", "level", min(sizes), POLICIES[0]))[0]),
    }


def settings(stage: str, constants: str, dp_size: int, policy: str) -> EngineArgs:
    return EngineArgs(
        stage=stage,
        constants=constants,
        dp_size=dp_size,
        load_balance_method=policy,
        device="sim",
        sim_profile=PROFILE,
        max_running_requests=MOST_RUNNING,
        idle="block",
    )


def check_options(options: argparse.Namespace) -> tuple[list[tuple[str, str]], list[int], list[float]]:
    """(stage, constants), numbers of replicas, loads. ValueError of one line."""
    check_repeats(options.repeats)
    check_repeats(options.requests, "--requests")
    try:
        loads = [float(word) for word in options.loads.split(",")]
    except ValueError:
        loads = []
    if not loads or not all(0 < load <= 2 for load in loads):
        raise ValueError(f"--loads {options.loads!r}: give fractions above 0 and up to 2, like 0.3,0.9")
    check_once("--loads", loads)
    sizes = numbers("--dp-size", options.dp_size, 2, "give numbers of replicas above 1, like 2,4")
    systems = []
    for word in options.systems.split(","):
        stage, _, constants = word.partition(":")
        if (stage, constants) == ("peer", "era"):
            raise ValueError("--systems peer:era: shortest_queue raised an error in 0.4.0; use peer:level")
        for size in sizes:
            for policy in POLICIES:
                resolve_args(settings(stage, constants, size, policy))
        systems.append((stage, constants))
    check_once("--systems", [f"{stage}:{constants}" for stage, constants in systems])
    return systems, sizes, loads


def expected_seconds(capacities: list[dict[str, Any]], loads: list[float], requests: int) -> float:
    """Of one repeat."""
    total = 0.0
    for one in capacities:
        sending = requests * one["dp_size"] / one["requests_per_s"] * sum(1 / load for load in loads)
        total += len(POLICIES) * (ENGINE_S + sending)
    return total


# ---------------------------------------------------------------------- measuring


def make_requests(engine: Engine, count: int, rng: np.random.Generator) -> list[GenerateRequest]:
    lengths = np.full(count, SHORT)
    lengths[rng.permutation(count)[: count // LONG_EVERY]] *= SPREAD
    ids = [rng.integers(0, engine.model_config.vocab_size, length).tolist() for length in lengths]
    sampling = [{"temperature": 0, "max_new_tokens": int(length) // 4, "ignore_eos": True} for length in lengths]
    return engine.make_requests(None, sampling, ids, stream=True)[1]


def send(engine: Engine, requests: list[GenerateRequest], send_at: np.ndarray) -> dict[str, Any]:
    """On an empty cache; send_at[i] in seconds after the beginning. Times in seconds, and the replicas' shares. `late`:
    how long after its moment a request was sent, at most."""
    engine.flush_cache()
    before = engine.stats()
    began = time.perf_counter()
    streams = []
    late = 0.0
    for request, at in zip(requests, send_at, strict=True):
        time.sleep(max(0.0, began + at - time.perf_counter()))
        late = max(late, time.perf_counter() - began - at)
        streams += engine.submit([request])
    for stream in streams:
        stream.result()
    after = engine.stats()
    taken = collect(streams)
    return {
        "seconds": taken.duration,
        "late": late,
        "ttft": [round(seconds, 5) for seconds in taken.ttft],
        "e2e": [round(seconds, 5) for seconds in taken.e2e],
        "share_of_requests": _shares(before, after, "finished"),
        "share_of_tokens": _shares(before, after, "prompt_tokens"),
    }


def _shares(before: list[dict[str, Any]], after: list[dict[str, Any]], name: str) -> list[float]:
    counts = [new[name] - old[name] for old, new in zip(before, after, strict=True)]
    return [count / sum(counts) for count in counts]


def _warm(engine: Engine, dp_size: int) -> None:
    send(engine, make_requests(engine, 4 * dp_size, np.random.default_rng(0)), np.zeros(4 * dp_size))


def capacity(stage: str, constants: str, dp_size: int, requests: int) -> float:
    """Requests/s of all replicas together, when all are there from the start."""
    count = requests * dp_size
    with start(settings(stage, constants, dp_size, "round_robin")) as engine:
        _warm(engine, dp_size)
        taken = send(engine, make_requests(engine, count, np.random.default_rng(1)), np.zeros(count))
    return count / taken["seconds"]


def measure(
    system: dict[str, Any], policy: str, loads: list[float], requests: int, repeat: int
) -> list[dict[str, Any]]:
    """One engine's life: a sample for each load."""
    arm = {name: system[name] for name in ("stage", "constants", "dp_size")} | {"policy": policy}
    count = requests * arm["dp_size"]
    samples = []
    with start(settings(arm["stage"], arm["constants"], arm["dp_size"], policy)) as engine:
        _warm(engine, arm["dp_size"])
        for place, load in enumerate(loads):
            rng = np.random.default_rng((repeat, place))
            rate = load * system["requests_per_s"]
            send_at = np.cumsum(rng.exponential(1 / rate, count))
            taken = send(engine, make_requests(engine, count, rng), send_at)
            samples.append({**arm, "load": load, "repeat": repeat, "rate": rate, **taken})
    return samples


# ---------------------------------------------------------------------- comparing


def chosen(samples: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """Of the repeats, in order: samples that have all these values."""
    return [sample for sample in samples if all(sample[name] == value for name, value in wanted.items())]


def ratios_of(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """shortest_queue over round_robin, repeat by repeat, of every percentile."""
    names = ("stage", "constants", "dp_size", "load")
    found = []
    for key in dict.fromkeys(tuple(sample[name] for name in names) for sample in samples):
        cell = dict(zip(names, key, strict=True))
        arms = {policy: chosen(samples, **cell, policy=policy) for policy in POLICIES}
        for name in TIMES:
            for percent in PERCENTILES:
                turns, shortest = (
                    [float(np.percentile(sample[name], percent)) for sample in arms[policy]] for policy in POLICIES
                )
                found.append({**cell, "time": name, "percentile": percent, "ratio": pairwise_ratio(shortest, turns)})
    return found


def show(result: dict[str, Any]) -> None:
    console = Console()
    for one in result["capacities"]:
        samples = chosen(result["samples"], **{name: one[name] for name in ("stage", "constants", "dp_size")})
        table = Table(
            title="{stage}, {constants}, DP {dp_size}: {requests_per_s:.0f} requests/s are load 1".format(**one)
        )
        for column in ("load", "policy", "requests, %", "tokens, %", "TTFT ms 50/95", "E2E ms 50/95", "late ms"):
            table.add_column(column)
        for load in result["loads"]:
            for policy in POLICIES:
                cell = chosen(samples, load=load, policy=policy)
                shares = [_percent(cell, name) for name in ("share_of_requests", "share_of_tokens")]
                late = f"{max(sample['late'] for sample in cell) * 1e3:.1f}"
                table.add_row(f"{load:g}", policy, *shares, *(_milliseconds(cell, name) for name in TIMES), late)
        console.print(table)
    console.print("late: how long after its moment a request was sent, at most", soft_wrap=True)
    console.print("shortest_queue over round_robin, 95th percentile, median of the pairs [interval]:")
    for one in result["ratios"]:
        if one["percentile"] == 95 and len(one["ratio"]["pairs"]) > 1:
            words = "{stage} {constants} DP {dp_size}, load {load:g}, {time}:".format(**one)
            console.print(words, shown(one["ratio"]), remark(one["ratio"]), soft_wrap=True)


def _percent(cell: list[dict[str, Any]], name: str) -> str:
    return " ".join(f"{share * 100:.0f}" for share in np.median([sample[name] for sample in cell], axis=0))


def _milliseconds(cell: list[dict[str, Any]], name: str) -> str:
    values = [median([np.percentile(sample[name], percent) for sample in cell]) for percent in PERCENTILES]
    return " / ".join(f"{value * 1e3:.0f}" for value in values)
