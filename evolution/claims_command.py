"""`claims`: what the chapter says, claim by claim, with verdicts, evidence, and the command that shows it.

With `--run` each claim that this suite can show is measured: what is predicted is printed first, then what came out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evolution.history import data, tables
from evolution.history.data import Claim
from evolution.history_args import VERDICTS

if TYPE_CHECKING:
    from experiments.claims.trial import Outcome


def claims_command(options: argparse.Namespace) -> int:
    """Exit status 1 if with --run a claim came out against its verdict, or could not be measured. ValueError of one
    line for a number that no claim has, or that --run cannot measure."""
    chosen = choose(options)
    if options.json and not options.run:
        raise ValueError("--json goes with --run: it writes what was measured")
    console = Console()
    if options.run:
        return run(chosen, options, console)
    console.print(tables.claims(chosen))
    console.print(tables.counts(chosen), soft_wrap=True)
    return 0


def choose(options: argparse.Namespace) -> list[Claim]:
    claims = data.claims()
    if unknown := [number for number in options.only or () if not 1 <= number <= len(claims)]:
        raise ValueError(f"--only {unknown[0]}: claims are numbered from 1 to {len(claims)}")
    verdicts, numbers = options.verdict or VERDICTS, options.only or range(1, len(claims) + 1)
    return [claim for claim in claims if claim.verdict in verdicts and claim.number in numbers]


def run(chosen: list[Claim], options: argparse.Namespace, console: Console) -> int:
    from common.args import EngineArgs  # torch and all engines: the list of claims needs none of them
    from evolution.checks import resolve_args
    from evolution.environment import environment
    from evolution.run import check_writable
    from experiments.claims import TRIALS, once, table
    from experiments.claims.trial import Clock, run_trial

    claims = {claim.number: claim for claim in chosen}
    for number in options.only or ():
        if number not in TRIALS:
            raise ValueError(f"--only {number}: no run shows this claim; there are {', '.join(map(str, TRIALS))}")
    trials = [trial for number, trial in TRIALS.items() if number in claims]
    if not trials:
        raise ValueError("no run shows a claim of those that --verdict and --only leave")
    if options.json:
        check_writable(options.json)
    started = environment(resolve_args(EngineArgs(device="sim", tp_size=2))[0])
    once.forget()
    clock = Clock(trials)
    console.print(f"{len(trials)} claims, one engine at a time: about {clock.remaining:.0f} s", highlight=False)
    began = time.monotonic()
    found: list[Outcome] = []
    for place, trial in enumerate(trials, 1):
        said = table.before(trial, place, len(trials), clock.remaining)
        console.print(said, soft_wrap=True, highlight=False, markup=False)
        found.append(run_trial(trial))
        clock.ran(found[-1])
        console.print(table.after(found[-1]), soft_wrap=True, highlight=False, markup=False)
        if options.json:  # after each: an interruption loses none that has run
            write(Path(options.json), claims, found, time.monotonic() - began, started)
    console.print(table.outcomes(claims, found))
    console.print(table.counts(found, time.monotonic() - began), soft_wrap=True)
    if options.json:
        console.print(f"results: {options.json}", soft_wrap=True)
    return 1 if any(outcome.failed for outcome in found) else 0


def write(path: Path, claims: dict[int, Claim], found: list[Outcome], seconds: float, started: dict[str, Any]) -> None:
    """A result as those of benches, which `report` puts on its page."""
    from evolution.bench_command import write_result
    from experiments.bench.verdicts import combined

    words = {"yes": "holds", "undecided": "undecided", "no": "fails"}
    rows = []
    for outcome in found:
        claim = claims[outcome.trial.number]
        rows.append({"number": claim.number, "claim": claim.claim, "judged": claim.verdict, **outcome.record()})
    result = {
        "bench": "claims",
        "unit": "counts and ratios",
        "seconds": round(seconds, 1),
        "claims": rows,
        "verdict": combined(words[outcome.holds] for outcome in found),
        "environment": started,
    }
    write_result(path, result)
