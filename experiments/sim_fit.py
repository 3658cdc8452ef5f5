"""Fit a `--device sim` profile to this machine's CPU runner, and compare it with turns that the fit has not seen.

    python -m experiments.sim_fit --out cpu.json [--repeats 15]

One rank, smollm2 in float32. It times decode steps of 1, 2, 4, 8 and 16 rows with contexts of 40 and 400 tokens, fits
bandwidth, flops, a time per token and one per key, and writes the profile. Then it prints what that predicts for these
and for 3, 6 and 12 rows with 200 tokens, beside what was measured: the fastest of a point's steps, since other load
only adds. Prefills play no part in the fit, nor do collectives: for those the profile has a rendezvous through shared
memory as `common.parallel.collectives` states it.

It wants a quiet machine. With three to five other processes on each core the fastest step is itself a disturbed one.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from common.args import EngineArgs
from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.messages import pack_ids
from common.models.config import load_config
from common.processes import ChildContext, Supervisor
from common.ranks import rank_env, threads_per_rank
from common.sim.profiles import SimModel, SimProfile
from common.sim.roofline import Roofline
from evolution.checks import resolve_args

FITTED = list(itertools.product((1, 2, 4, 8, 16), (40, 400)))
UNSEEN = list(itertools.product((3, 6, 12), (200,)))
GREEDY = RowSampling(0.0, 1.0, -1, 0)
# Steps in a row for one point; the points take turns, so that all of them meet the same machine.
STEPS = 3
RENDEZVOUS_SECONDS = 16e-6
AT_MOST = 0.15


class Turn(NamedTuple):
    """A decode step of `rows` rows of `context` tokens each, and its shortest time."""

    rows: int
    context: int
    seconds: float


def measure(args: EngineArgs, repeats: int) -> list[Turn]:
    """In a process of its own, started as a rank is: thread counts are fixed when libraries are loaded."""
    supervisor = Supervisor(lambda failure: None)
    supervisor.start("fit-rank", "experiments.sim_fit:run_rank", {"args": args, "repeats": repeats}, rank_env(args))
    try:
        (report,) = supervisor.wait_ready()
    finally:
        supervisor.kill()
    return [Turn(*turn) for turn in report.info["turns"]]


def run_rank(context: ChildContext, args: EngineArgs, repeats: int) -> None:
    import torch

    from common.parallel.collectives import SingleRank
    from common.runner import ModelRunner

    torch.set_num_threads(threads_per_rank(args))
    runner = ModelRunner(
        load_config(args.model_path),
        SingleRank(),
        max_running_requests=args.max_running_requests,
        context_length=args.context_length,
        max_total_tokens=args.max_total_tokens,
        dtype=args.dtype,
    )
    _write_pages(runner)
    points = FITTED + UNSEEN
    times: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for _ in range(repeats):
        for point in points:
            times[point] += _time_steps(runner, *point)
    context.ready({"turns": [(*point, min(all_)) for point, all_ in times.items()]})
    signal.pause()  # the parent kills what it has heard of


def _write_pages(runner: Any) -> None:
    """Prefill every slot that the steps will read, 256 at a time: the kernel answers reads of memory that was never
    written from one page of zeros, which lies in the cache."""
    most = max(rows * (context + STEPS) for rows, context in FITTED + UNSEEN)
    for first in range(0, most, 256):
        slots = pack_ids(range(first, first + 256))
        runner.execute(BatchPlan(1, [PrefillSeq(0, 0, pack_ids([7] * 256), slots, b"", GREEDY, True)]))


def _time_steps(runner: Any, rows: int, context: int) -> list[float]:
    """Seconds of STEPS decode steps, of which the one in the middle has `context` tokens a row. All tokens but one
    count as cached: what their KV holds does not matter to the time."""
    slots = iter(range(runner.max_total_tokens))

    def take(n: int) -> bytes:
        return pack_ids(itertools.islice(slots, n))

    cached = context - 2 - STEPS // 2
    seqs = [PrefillSeq(row, cached, pack_ids([7]), take(1), take(cached), GREEDY, True) for row in range(rows)]
    runner.execute(BatchPlan(1, seqs))
    seconds = []
    for step in range(STEPS):
        plan = BatchPlan(2 + step, [], pack_ids(range(rows)), take(rows))
        began = time.perf_counter()
        runner.execute(plan)
        seconds.append(time.perf_counter() - began)
    return seconds


def fit(start: SimProfile, turns: list[Turn]) -> SimProfile:
    """`start` with the figures that predict the turns best, by relative error.

    For a given ratio of flops to bandwidth the time is linear in the other three, so the ratio is scanned and the rest
    solved. None of them may be negative. A fixed time is not fitted: a decode step always reads all weights, so nothing
    here could tell the two apart.
    """
    best: tuple[float, SimProfile] | None = None
    for ratio in np.geomspace(0.1, 1000, 200):
        unit = Roofline(msgspec.structs.replace(start, memory_bandwidth=1.0, flops=float(ratio)), 1)
        columns = np.array(
            [
                (unit.decode_seconds(turn.rows, turn.rows * turn.context), turn.rows, turn.rows * turn.context)
                for turn in turns
            ],
            dtype=float,
        )
        relative = columns / np.array([[turn.seconds] for turn in turns])
        for kept in ([0], [0, 1], [0, 2], [0, 1, 2]):
            values = np.zeros(3)
            values[kept] = np.linalg.lstsq(relative[:, kept], np.ones(len(turns)), rcond=None)[0]
            error = float(np.square(relative @ values - 1).sum())
            if values.min() < 0 or (best and error >= best[0]):
                continue
            per_byte, token, key = map(float, values)
            best = (
                error,
                msgspec.structs.replace(
                    start,
                    memory_bandwidth=1 / per_byte,
                    flops=float(ratio) / per_byte,
                    token_seconds=token,
                    key_seconds=key,
                ),
            )
    assert best is not None, "with one column alone the value is positive"
    return best[1]


def profile_of(args: EngineArgs) -> SimProfile:
    """Of smollm2 on this machine, with figures that `fit` replaces."""
    config = load_config(args.model_path)
    sizes = {name: getattr(config, name) for name in SimModel.__struct_fields__ if name != "name"}
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())["MemTotal"]
    return SimProfile(
        device=f"this CPU, {threads_per_rank(args)} threads",
        dtype=args.dtype,
        memory_bytes=int(memory.split()[0]) * 1024,
        memory_bandwidth=1.0,
        flops=1.0,
        link_bandwidth=1e10,
        collective_latency=RENDEZVOUS_SECONDS,
        hop_latency=0.0,
        model=SimModel(name=config.path.name, **sizes),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the profile's file, ending in .json")
    parser.add_argument("--repeats", type=int, default=15, help="rounds over all points")
    options = parser.parse_args()
    args, _ = resolve_args(EngineArgs(model_path="smollm2", max_total_tokens=8192, max_running_requests=16))
    turns = measure(args, options.repeats)
    profile = fit(profile_of(args), [turn for turn in turns if (turn.rows, turn.context) in FITTED])
    Path(options.out).write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    print(
        f"{profile.memory_bandwidth / 1e9:.1f} GB/s, {profile.flops / 1e9:.0f} GFLOPS,"
        f" {profile.token_seconds * 1e3:.2f} ms per token, {profile.key_seconds * 1e6:.1f} us per key: {options.out}"
    )
    roofline = Roofline(profile, 1)
    largest = 0.0
    for turn in turns:
        predicted = roofline.decode_seconds(turn.rows, turn.rows * turn.context)
        largest = max(largest, abs(predicted / turn.seconds - 1))
        seen = "fitted" if (turn.rows, turn.context) in FITTED else "unseen"
        print(
            f"{seen}: {turn.rows:2} rows of {turn.context:3} tokens: predicted {predicted * 1e3:6.1f} ms,"
            f" measured {turn.seconds * 1e3:6.1f} ms, {predicted / turn.seconds - 1:+.0%}"
        )
    holds = largest <= AT_MOST
    print(f"largest deviation {largest:.0%} (at most {AT_MOST:.0%}: {'holds' if holds else 'fails'})")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
