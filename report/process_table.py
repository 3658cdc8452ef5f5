"""The processes of every arm as a table: what each is, and the CPU time and context switches that it takes."""

from __future__ import annotations

import numpy as np

from experiments.compare.records import Plan, Process, Run
from report.comparison import number
from report.table_files import TableFile, simple_table

COLUMNS = ["arm", "process", "role", "threads"]
SWITCHES = "context switches / 1,000 tokens"


def process_table(plan: Plan, runs: list[Run]) -> TableFile:
    """Medians over the runs of an arm. What simulating takes is known by rank 0 and all others only, so it is in these
    CPU times, and their heading says so."""
    simulated = any("sim_cpu_seconds" in run.stats for run in runs)
    columns = [*COLUMNS, "CPU s / 1,000 tokens" + ", simulating included" * simulated, SWITCHES]
    rows = []
    for arm in plan.arms:
        of_arm = [run for run in runs if run.arm == arm and run.processes]
        for place, process in enumerate(of_arm[0].processes if of_arm else []):
            alike = [(run, run.processes[place]) for run in of_arm if place < len(run.processes)]
            seconds = np.median([one.cpu_us / 1e3 / run.output_tokens for run, one in alike])
            switched = np.median([_switches(one) / run.output_tokens * 1000 for run, one in alike])
            rows.append(
                [arm.name, process.name, process.role, str(len(process.threads)), number(seconds), number(switched)]
            )
    return simple_table("processes", "Processes, medians of the runs", columns, rows, len(runs))


def _switches(process: Process) -> int:
    return sum(thread.voluntary + thread.involuntary for thread in process.threads)
