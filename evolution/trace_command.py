"""`trace`: run a stage, and write what each process did when as one file for Perfetto."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from common.args import engine_args_from
from common.run_folder import run_folder
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.engine import EngineError
from evolution.environment import environment
from evolution.requests import RequestMaker
from evolution.run import check_writable, run_stage
from evolution.workload import make_workload
from report.accounts import Agreement, agreements
from report.distribute import distribute_split, replicas
from report.perfetto import chrome_trace
from report.trace import ThreadTrace, counts_of, cpu_of, load, parts_of, sampled_of, working_turns


def trace_command(options: argparse.Namespace) -> int:
    if options.stage == "all":
        raise ValueError("--stage all: a trace is of one stage")
    if options.trace_dir:
        raise ValueError("--trace-dir does not go with trace: it is what trace makes, and then removes")
    args, config = resolve_args(engine_args_from(options))
    workload = make_workload(options, RequestMaker(args, config, Tokenizer(args.model_path)))
    check_writable(options.out, "--out")
    console = Console()
    with run_folder() as folder:
        try:
            result = run_stage(dataclasses.replace(args, trace_dir=str(folder)), workload, console)
        except EngineError as error:
            print(f"python -m evolution trace: {error}", file=sys.stderr)
            return 1
        threads = load(folder)
    trace = chrome_trace(threads) | {"otherData": environment(args)}
    Path(options.out).write_bytes(msgspec.json.encode(trace))
    for thread in threads:
        if turns := working_turns(thread):
            console.print(parts_table(thread, turns))
            console.print(below_parts(thread, turns) + "\n")
    for replica in replicas(threads):
        if split := distribute_split(replica, working_turns(replica[0])):
            steps = ", ".join(f"{name} {us:.1f}" for name, us in split.items())
            console.print(f"distribute, from {replica[0].process}, median us a turn: {steps}", soft_wrap=True)
    console.print(accounts_table(agreements(threads, *result.accounts)))
    console.print(f"trace of {len(threads)} threads: {options.out}  (open it at ui.perfetto.dev)", soft_wrap=True)
    return 0


def accounts_table(rows: list[Agreement]) -> Table:
    """Of the workload: what the traces say, and what the operating system says."""
    table = Table(title="CPU time of the workload: by the traces, and by the operating system")
    for column in ("process", "thread", "trace ms", "system ms", "ratio", "of it not traced", "ended threads"):
        names = column in ("process", "thread")
        table.add_column(column, justify="left" if names else "right", overflow="fold" if names else "ellipsis")
    for row in rows:
        of_process = () if row.thread else (f"{row.untraced / 1e6:.1f}", f"{row.ended / 1e6:.1f}")
        times = (f"{row.traced / 1e6:.1f}", f"{row.account / 1e6:.1f}", f"{row.ratio:.3f}")
        table.add_row(row.process, row.thread or "all", *times, *of_process, end_section=not row.thread)
    return table


def parts_table(thread: ThreadTrace, turns: list[int]) -> Table:
    """The mean of the working turns."""
    name = thread.process if thread.thread == "loop" else f"{thread.process} {thread.thread}"
    table = Table(title=f"{name}: {len(turns)} turns that ran something; mean")
    for column in ("part", "wall us", "CPU us"):
        table.add_column(column, justify="right" if column != "part" else "left")
    parts = parts_of(thread, turns)
    for part, (wall, cpu) in parts.items():
        table.add_row(part, *_per_turn(wall, cpu, turns))
    table.add_section()
    table.add_row("together", *_per_turn(sum(wall for wall, _ in parts.values()), cpu_of(thread, turns), turns))
    return table


def _per_turn(wall: int, cpu: int, turns: list[int]) -> tuple[str, str]:
    return f"{wall / len(turns) / 1000:.1f}", f"{cpu / len(turns) / 1000:.1f}"


def below_parts(thread: ThreadTrace, turns: list[int]) -> str:
    """What was counted, of how many turns it is known how their CPU time divides, and what the other turns took."""
    names = {"prefill": "with a prefill", "other": "others"}
    kinds = [
        f"{count} {names[kind]}, {sampled} of them sampled"
        for kind, (count, sampled) in sampled_of(thread, turns).items()
    ]
    counted = ", ".join(f"{count} {value / len(turns):.2f}" for count, value in counts_of(thread, turns).items())
    text = f"Counted in such a turn, mean: {counted}. " if counted else ""
    text += f"The CPU time of a turn is exact; by part it is an estimate from the sampled turns: {'; '.join(kinds)}."
    others = [n for n in range(1, len(thread.turns)) if n not in set(turns)]
    if others:
        wall = sum(wall for wall, _ in parts_of(thread, others).values()) / 1e6
        text += f" {len(others)} turns ran nothing: {wall:.0f} ms, CPU {cpu_of(thread, others) / 1e6:.0f} ms in all."
    return text
