"""`trace`: run a stage, and write what each process did when as one file for Perfetto."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from common.args import engine_args_from
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.engine import EngineError
from evolution.environment import environment
from evolution.requests import RequestMaker
from evolution.run import check_writable, run_stage
from evolution.workload import make_workload
from report.trace import ThreadTrace, chrome_trace, counts_of, load, parts_of


def trace_command(options: argparse.Namespace) -> int:
    if options.stage == "all":
        raise ValueError("--stage all: a trace is of one stage")
    args, config = resolve_args(engine_args_from(options))
    workload = make_workload(options, RequestMaker(args, config, Tokenizer(args.model_path)))
    check_writable(options.out, "--out")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="evo-trace-") as folder:
        try:
            run_stage(dataclasses.replace(args, trace_dir=folder), workload, console)
        except EngineError as error:
            print(f"python -m evolution trace: {error}", file=sys.stderr)
            return 1
        threads = load(Path(folder))
    trace = chrome_trace(threads) | {"otherData": environment(args)}
    Path(options.out).write_bytes(msgspec.json.encode(trace))
    for thread in threads:
        if thread.plans:
            console.print(parts_table(thread))
    console.print(f"trace of {len(threads)} threads: {options.out}  (open it at ui.perfetto.dev)", soft_wrap=True)
    return 0


def parts_table(thread: ThreadTrace) -> Table:
    """Per turn in which something ran."""
    turns = sum(any(part.name == "forward" for part in turn) for turn in thread.turns[1:])
    table = Table(title=f"{thread.process}: {turns} turns with a forward; per such turn")
    for column in ("part", "wall us", "CPU us"):
        table.add_column(column, justify="right" if column != "part" else "left")
    for name, (wall, cpu) in parts_of(thread).items():
        table.add_row(name, f"{wall / max(1, turns) / 1000:.1f}", f"{cpu / max(1, turns) / 1000:.1f}")
    table.add_section()
    for name, count in counts_of(thread).items():
        table.add_row(name, f"{count / max(1, turns):.2f}", "")
    return table
