"""What a run says in numbers: counts first, since they barely depend on the machine, then times.

Per turn and per token: with ten decode steps a turn, one figure alone misleads. A turn here is a working turn of a
replica's rank 0, one with a forward; with several replicas their turns are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from experiments.compare.measure import FORWARD, IDLE
from experiments.compare.records import Run, Turns

DISPATCHERS = ("evo-router", "evo-controller-multi", "evo-dp-controller")


@dataclass(frozen=True)
class Metric:
    """`of(run)`: None where the run has no such figure. `less_is_better`: None for a count that is neither."""

    name: str
    unit: str
    of: Callable[[Run], float | None]
    less_is_better: bool | None = True


def leaders(run: Run) -> list[Turns]:
    """The threads that run rank 0 of each replica."""
    return [turns for turns in run.turns if turns.rank == 0 and turns.working]


def turn_count(run: Run) -> int:
    return sum(turns.working for turns in leaders(run))


def counted(run: Run, name: str) -> int:
    """Over all threads: messages, bytes, pickles, copies, collectives. Each is counted once, where it is sent."""
    return sum(turns.counts.get(name, 0) for turns in run.turns)


def cpu_us(run: Run) -> float:
    """Of all processes, without what only simulating takes."""
    return sum(process.cpu_us for process in run.processes) - _simulating_s(run) * 1e6


def simulating_cores(run: Run) -> float | None:
    """Cores that simulating the accelerator kept busy, on average over the workload: taken off `cpu_us`, and not there
    for the processes that run beside it."""
    return _simulating_s(run) / run.duration_s if "sim_cpu_seconds" in run.stats else None


def overshoot_us(run: Run) -> float | None:
    """What a simulated forward lasted beyond its prediction on rank 0, mean over all of them. The latencies hold it."""
    forwards = run.stats.get("sim_forwards", 0)
    return run.stats["sim_overshoot_seconds"] * 1e6 / forwards if forwards else None


def _simulating_s(run: Run) -> float:
    return run.stats.get("sim_cpu_seconds", 0) + run.stats.get("sim_others_cpu_seconds", 0)


def switches(run: Run) -> int:
    return sum(thread.voluntary + thread.involuntary for process in run.processes for thread in process.threads)


def _per_turn(run: Run, amount: float) -> float | None:
    turns = turn_count(run)
    return amount / turns if turns else None


def _median_turn(run: Run, kind: str) -> float | None:
    """Of one replica's rank 0; with several the mean of their medians. See `Turns.medians`."""
    return _mean([turns.medians[kind] for turns in leaders(run)])


def control_plane_us_per_token(run: Run) -> float:
    """All that the replicas' rank 0 did in their working turns beside forwards, prefills and long turns too."""
    parts = [part for turns in leaders(run) for part in turns.parts.items()]
    return sum(wall for name, (wall, _) in parts if name not in (IDLE, *FORWARD)) / run.output_tokens


def distribute_us(run: Run) -> float | None:
    """From where the slowest rank is ready until the last rank has its input, and for rpyc the way back."""
    return _mean([d.encode + d.transport + d.decode for d in run.distribute])


def dispatcher_us(run: Run) -> float | None:
    """CPU time of the process that hands requests to the replicas; where rpyc has several, their routers are its
    threads. None where there is one replica."""
    if run.arm.dp_size == 1:
        return None
    return sum(process.cpu_us for process in run.processes if process.name in DISPATCHERS) / run.output_tokens * 1000


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ms(samples: list[int], percent: float = 50) -> float | None:
    return float(np.percentile(samples, percent)) / 1000 if samples else None


def _counts(name: str, unit: str) -> list[Metric]:
    return [
        Metric(f"{name} a turn", unit, lambda run: _per_turn(run, counted(run, name)), None),
        Metric(f"{name} a 1,000 tokens", unit, lambda run: counted(run, name) / run.output_tokens * 1000, None),
    ]


COUNTS = [
    Metric("processes", "", lambda run: len(run.processes), None),
    Metric("threads", "", lambda run: sum(len(process.threads) for process in run.processes), None),
    Metric("turns a 1,000 tokens", "", lambda run: turn_count(run) / run.output_tokens * 1000, None),
    *_counts("messages", ""),
    *_counts("bytes", "B"),
    *_counts("pickles", ""),
    *_counts("copies", ""),
    *_counts("collectives", ""),
    Metric("context switches a turn", "", lambda run: _per_turn(run, switches(run)), None),
    Metric("context switches a 1,000 tokens", "", lambda run: switches(run) / run.output_tokens * 1000, None),
]

TIMES = [
    Metric("TTFT", "ms", lambda run: _ms(run.ttft_us)),
    Metric("ITL", "ms", lambda run: _ms(run.itl_us)),
    Metric("gap between chunks", "ms", lambda run: _ms(run.gap_us)),
    Metric("gap between chunks, p99", "ms", lambda run: _ms(run.gap_us, 99)),
    Metric("TPOT", "ms", lambda run: _ms(run.tpot_us)),
    Metric("E2E", "ms", lambda run: _ms(run.e2e_us)),
    Metric("output throughput", "tokens/s", lambda run: run.output_tokens / run.duration_s, False),
    Metric("turn", "us", lambda run: _median_turn(run, "turn")),
    Metric("forward of a turn", "us", lambda run: _median_turn(run, "forward")),
    Metric("control plane of a turn", "us", lambda run: _median_turn(run, "control")),
    Metric("control plane of a token", "us", control_plane_us_per_token),
    Metric("distribute of a turn", "us", distribute_us),
    Metric("wait for the slowest rank", "us", lambda run: _mean([d.wait_for_slowest for d in run.distribute])),
    Metric("CPU time a turn", "us", lambda run: _per_turn(run, cpu_us(run))),
    Metric("CPU time a 1,000 tokens", "s", lambda run: cpu_us(run) / run.output_tokens / 1000),
    Metric("dispatcher's CPU time a 1,000 tokens", "us", dispatcher_us),
    Metric("simulating, cores", "", simulating_cores),
    Metric("overshoot of a forward", "us", overshoot_us),
    Metric("start", "s", lambda run: run.startup_s),
]
