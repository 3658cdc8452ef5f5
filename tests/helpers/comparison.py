"""A comparison as `compare` writes it, with figures that a test chooses."""

from __future__ import annotations

from pathlib import Path

from experiments.compare.records import (
    Arm,
    Distribute,
    Plan,
    Process,
    Run,
    Strip,
    Thread,
    Turns,
    Workload,
    append_run,
    write_plan,
)

ENVIRONMENT = {
    "command": "python -m evolution compare --out <here> & there",
    "git_commit": "0" * 40,
    "python": "3.11.0",
    "versions": {"torch": "2.13.0"},
    "cpu_model": "A <fast> & small CPU",
    "cpu_count": 8,
    "affinity": [0, 1],
    "threads_per_rank": 1,
    "load_average": [0.1, 0.2, 0.3],
    "device": "sim",
    "sim_profile": {"name": "h100-qwen3-0.6b", "device": "H100", "model": {"name": "Qwen3-0.6B"}},
    "seed": 42,
}


def arm(stage: str, constants: str = "level", tp_size: int = 2, dp_size: int = 1) -> Arm:
    return Arm(stage, constants, "replicated", tp_size, dp_size)


def plan(arms: list[Arm], repeats: int) -> Plan:
    settings = {"device": "sim", "model_path": None}
    return Plan(arms, repeats, Workload(4, 16, 8, 2), settings, dict(ENVIRONMENT))


def run(of: Arm, repeat: int, scale: float = 1.0, **changed: object) -> Run:
    """`scale`: of all its times. `changed`: fields of the run that are to be others."""
    turn = {"other": 10 * scale, "transport": 300 * scale, "forward": 600.0, "send_output": 90 * scale}
    parts = {name: (wall * 100, wall * 50) for name, wall in turn.items()}
    control = 400 * scale
    medians = {"turn": control + 600, "forward": 600, "control": control}
    ranks = [
        Turns(f"evo-{of.stage} TP{rank}", "loop", 0, rank, 100, 3, parts, {}, medians, {"collectives": 200})
        for rank in range(of.tp_size)
    ]
    processes = [Process("main", "tokenizer, Engine", 10, 0, 50_000, [Thread(10, "python", 50_000, 9, 1)], {"unix": 5})]
    processes += [
        Process(ranks[rank].process, f"scheduler, rank {rank}", 11 + rank, 10, round(80_000 * scale),
                [Thread(11 + rank, "gloo_tcp_loop", 1, 2, 3)], {"tcp": 2})
        for rank in range(of.tp_size)
    ]  # fmt: skip
    strip = [Strip(one.process, "loop", [("transport", 0.0, 300.0), ("forward", 300.0, 900.0)]) for one in ranks]
    latencies = [round(us * scale) for us in (1000, 1100, 1200, 1300)]
    fields = {
        "arm": of, "repeat": repeat, "order": repeat, "began": "2024-01-01T00:00:00+00:00",
        "load_average": (0.1, 0.2, 0.3), "startup_s": 1.0, "duration_s": 0.5 * scale, "output_tokens": 1600,
        "tokens": "same", "ttft_us": latencies, "tpot_us": latencies, "e2e_us": latencies, "itl_us": latencies,
        "gap_us": latencies, "stats": {}, "processes": processes, "turns": ranks, "strip": strip,
        "distribute": [Distribute(0, 20 * scale, 50.0, 260 * scale, 20 * scale)] if of.tp_size > 1 else [],
    }  # fmt: skip
    return Run(**(fields | changed))


def write(folder: Path, of: Plan, runs: list[Run]) -> Path:
    folder.mkdir(exist_ok=True)
    write_plan(folder, of)
    for one in runs:
        append_run(folder, one)
    return folder
