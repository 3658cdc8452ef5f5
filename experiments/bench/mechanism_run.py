"""Starts the processes of some mechanisms' phases, waits for their end, and gathers what they measured."""

from __future__ import annotations

import multiprocessing
from typing import Any

from common.args import EngineArgs
from common.processes import ProcessFailed, Supervisor
from common.ranks import rank_env
from common.run_folder import create_run_folder, remove_run_folder
from experiments.bench.mechanism_base import Mechanism
from experiments.bench.mechanism_ranks import Board, Job, Phase, Sample


def measure(
    who: str, mechanisms: dict[str, type[Mechanism]], phases: list[Phase], timeout: float
) -> tuple[list[Sample], float]:
    """All samples, and the us of CPU time that a step costs without sending anything. `who`: in the one line of the
    SystemExit when a process dies."""
    most = max(mechanisms[phase.mechanism].receivers(phase.ranks) for phase in phases)
    env = rank_env(EngineArgs(tp_size=max(phase.ranks for phase in phases)))
    folder = create_run_folder()
    supervisor = Supervisor(lambda failure: None)
    try:
        job = Job(
            str(folder),
            {name: mechanism(most) for name, mechanism in mechanisms.items()},
            phases,
            Board(most, max(phase.place("").steps for phase in phases), max(len(phase.blocks) for phase in phases)),
            [multiprocessing.Pipe(duplex=False) for _ in range(most)],
        )
        supervisor.start("bench driver", "experiments.bench.mechanism_ranks:run_driver", {"job": job}, env)
        for index in range(most):
            target = "experiments.bench.mechanism_ranks:run_receiver"
            supervisor.start(f"bench receiver {index}", target, {"job": job, "index": index}, env)
        info = supervisor.wait_ready(timeout)[0].info
    except ProcessFailed as error:
        said = str(error.failure).removesuffix(" before it was ready")  # they are called ready when they have finished
        raise SystemExit(f"{who}: {said}") from None
    except TimeoutError as error:
        raise SystemExit(f"{who}: {error}") from None
    finally:
        supervisor.kill()
        remove_run_folder(folder)
    return info["samples"], info["pause_cpu"]


def collect(samples: list[Sample]) -> list[dict[str, Any]]:
    """One cell for each mechanism, T and payload: wall [rounds][steps], cpu [rounds], counts."""
    cells: dict[tuple, dict[str, Any]] = {}
    for one in samples:
        key = one.mechanism, one.ranks, one.payload
        if one.counting:
            names = ("messages", "bytes", "encodings", "decodings")
            cells[key] = dict(zip(("mechanism", "ranks", "payload"), key, strict=True))
            cells[key] |= {"counts": dict(zip(names, one.counts, strict=True)), "wall": [], "cpu": []}
        else:
            cells[key]["wall"].append(one.wall)
            cells[key]["cpu"].append(one.cpu)
    return list(cells.values())
