"""`faults`: fail every process of a stage in every way, or kill at random under load, and say what became of it."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from common.args import EngineArgs
from evolution.checks import resolve_args
from evolution.environment import environment
from evolution.faults_args import KINDS, PHASES
from evolution.run import check_writable
from experiments.faults.kills import Kill, run_kills
from experiments.faults.table import Case, Row, all_cases, run_case
from experiments.faults.watching import STARTUP, WATCHDOG
from report.words import of_many

RIGHT = "right"
SECONDS_PER_PROCESS = 1.0  # of a start, on two cores
SECONDS_A_CASE = 1.0  # and of what comes after it


def faults_command(options: argparse.Namespace) -> int:
    """Exit status 0 when every row is right."""
    args = EngineArgs(
        stage=options.stage,
        tp_size=options.tp_size,
        dp_size=options.dp_size,
        device=options.device,
        model_path="tiny",
        max_total_tokens=8192,
    )
    args, _ = resolve_args(args)
    if options.json:
        check_writable(options.json)
    console = Console()
    started = environment(args)
    if options.kills is not None:
        if options.kills < 1:
            raise ValueError(f"--kills must be at least 1, not {options.kills}")
        rows = _kills(options, console)
    else:
        rows = _table(options, console)
    wrong = sum(row["verdict"] != RIGHT for row in rows)
    console.print(f"{len(rows) - wrong} of {len(rows)} are right", style="red" if wrong else "green")
    if options.json:
        result = {"options": vars(options), "rows": rows, "environment": started}
        Path(options.json).write_bytes(msgspec.json.encode(result) + b"\n")
        console.print(f"results: {options.json}", soft_wrap=True)
    return 1 if wrong else 0


def _table(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    cases = [case for case in all_cases(options.stage, options.tp_size, options.dp_size) if _chosen(case, options)]
    if not cases:
        names = sorted({case.process for case in all_cases(options.stage, options.tp_size, options.dp_size)})
        raise ValueError(
            f"no process, kind and phase fit what --process, --kind and --phase say; processes: {', '.join(names)};"
            " an idle process cannot raise"
        )
    console.print(f"{of_many(len(cases), 'engine')}, about {_minutes(_estimate(cases))} on two cores")
    rows = []
    for case in cases:
        row = run_case(case, options.device)
        rows.append(row)
        console.print(_line(row), soft_wrap=True, style=None if row.verdict == RIGHT else "red", highlight=False)
    console.print(_summary(rows))
    return [dataclasses.asdict(row) | {"limit": row.case.limit, "verdict": row.verdict} for row in rows]


def _minutes(seconds: float) -> str:
    return of_many(max(1, round(seconds / 60)), "minute")


def _chosen(case: Case, options: argparse.Namespace) -> bool:
    name = case.process.removeprefix("evo-")
    wanted = options.process is None or any(
        name in (text, f"{name.partition(' ')[0]} {text}") for text in options.process
    )
    return wanted and case.kind in options.kind and case.phase in options.phase


def _estimate(cases: list[Case]) -> float:
    """s"""
    total = 0.0
    for case in cases:
        total += SECONDS_PER_PROCESS * (case.tp * case.dp + 1) + SECONDS_A_CASE
        if case.kind == "stop":
            total += STARTUP if case.phase == "start" else WATCHDOG
    return total


def _line(row: Row) -> str:
    case = row.case
    noticed = "never" if row.noticed is None else f"{row.noticed:.2f} s"
    what = f"{case.phase:<8} {case.kind:<6} {case.process:<22}"
    return f"{what} noticed {noticed:>7} (limit {case.limit:.0f})  orphans {row.orphans}  {row.verdict}: {row.saw}"


def _summary(rows: list[Row]) -> Table:
    table = Table("phase", "kind", "engines", "noticed after, longest [s]", "limit [s]", "orphans", "right")
    for phase, kind in itertools.product(PHASES, KINDS):
        some = [row for row in rows if (row.case.phase, row.case.kind) == (phase, kind)]
        if not some:
            continue
        times = [row.noticed for row in some]
        longest = "never" if None in times else f"{max(times):.2f}"
        right = sum(row.verdict == RIGHT for row in some)
        orphans = sum(row.orphans for row in some)
        table.add_row(phase, kind, str(len(some)), longest, f"{some[0].case.limit:.0f}", str(orphans), str(right))
    return table


def _kills(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    shape = (options.stage, options.tp_size, options.dp_size)
    seconds = options.kills * (SECONDS_PER_PROCESS * (options.tp_size * options.dp_size + 1) + SECONDS_A_CASE)
    console.print(f"{of_many(options.kills, 'engine')}, about {_minutes(seconds)} on two cores")
    kills = []
    for kill in run_kills(*shape, options.device, options.kills, options.seed):
        kills.append(kill)
        console.print(_kill_line(len(kills), kill), soft_wrap=True, highlight=False)
    _print_growth(kills, console)
    return [dataclasses.asdict(kill) | {"verdict": kill.verdict} for kill in kills]


def _kill_line(number: int, kill: Kill) -> str:
    noticed = "never" if kill.noticed is None else f"{kill.noticed:.2f} s"
    return (
        f"{number:>4}  started in {kill.started:.1f} s, after {kill.after:.2f} s killed {kill.process:<22} noticed"
        f" {noticed:>7}  results {kill.results:>3}  {kill.verdict}: {kill.saw}"
    )


def _print_growth(kills: list[Kill], console: Console) -> None:
    longest = max((kill.noticed for kill in kills if kill.noticed is not None), default=0.0)
    starts = sorted(kill.started for kill in kills)
    console.print(
        f"noticed after at most {longest:.2f} s; started in {starts[len(starts) // 2]:.1f} s (median),"
        f" {starts[-1]:.1f} s (longest); open files of the main process: {kills[0].files} at first,"
        f" {kills[-1].files} at last"
    )
