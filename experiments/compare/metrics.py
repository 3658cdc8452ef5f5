"""What a run says in numbers: counts first, since they barely depend on the machine, then times.

Per turn and per token: with ten decode steps a turn, one figure alone misleads. A turn here is a working turn of a
replica's rank 0, one with a forward; with several replicas their turns are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.tracing import DISTRIBUTE
from experiments.compare.records import Run, Turns

# Of a rank's turn: what its forward is, and where it waits for work.
FORWARD = ("prepare", "forward", "sample")
WAITS = ("idle", "pacing_sleep")


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
    """Over all threads: messages, bytes, pickles, copies, collectives."""
    return sum(turns.counts.get(name, 0) for turns in run.turns)


def cpu_us(run: Run) -> float:
    """Of all processes, without what only simulating takes."""
    simulating = run.stats.get("sim_cpu_seconds", 0) + run.stats.get("sim_others_cpu_seconds", 0)
    return sum(process.cpu_us for process in run.processes) - simulating * 1e6


def switches(run: Run) -> int:
    return sum(thread.voluntary + thread.involuntary for process in run.processes for thread in process.threads)


def _per_turn(run: Run, amount: float) -> float | None:
    turns = turn_count(run)
    return amount / turns if turns else None


def _leader_wall(run: Run, chosen: Callable[[str], bool]) -> float:
    return sum(wall for turns in leaders(run) for part, (wall, _) in turns.parts.items() if chosen(part))


def turn_us(run: Run) -> float | None:
    return _per_turn(run, _leader_wall(run, lambda part: part not in WAITS))


def forward_us(run: Run) -> float | None:
    return _per_turn(run, _leader_wall(run, lambda part: part in FORWARD))


def control_plane_us(run: Run) -> float | None:
    return _per_turn(run, _leader_wall(run, lambda part: part not in FORWARD + WAITS))


def control_plane_us_per_token(run: Run) -> float:
    return _leader_wall(run, lambda part: part not in FORWARD + WAITS) / run.output_tokens


def distribute_us(run: Run) -> float | None:
    """How the turn's input reaches the ranks. Of rank 0; where a router calls the ranks, what its calls took beyond
    what rank 0 did in them."""
    routers = [turns for turns in run.turns if turns.rank is None and "router" in turns.process]
    wall = sum(turns.parts.get(part, (0, 0))[0] for turns in routers or leaders(run) for part in DISTRIBUTE)
    if routers:
        wall -= _leader_wall(run, lambda part: part not in (*DISTRIBUTE, *WAITS, "wait_for_router"))
    return _per_turn(run, wall)


def _median(samples: list[int]) -> float | None:
    return float(np.median(samples)) if samples else None


def _ms(samples: list[int]) -> float | None:
    median = _median(samples)
    return None if median is None else median / 1000


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
    Metric("TPOT", "ms", lambda run: _ms(run.tpot_us)),
    Metric("E2E", "ms", lambda run: _ms(run.e2e_us)),
    Metric("output throughput", "tokens/s", lambda run: run.output_tokens / run.duration_s, False),
    Metric("turn", "us", turn_us),
    Metric("forward of a turn", "us", forward_us),
    Metric("control plane of a turn", "us", control_plane_us),
    Metric("control plane of a token", "us", control_plane_us_per_token),
    Metric("distribute of a turn", "us", distribute_us),
    Metric("CPU time a turn", "us", lambda run: _per_turn(run, cpu_us(run))),
    Metric("CPU time a 1,000 tokens", "s", lambda run: cpu_us(run) / run.output_tokens / 1000),
    Metric("start", "s", lambda run: run.startup_s),
]
