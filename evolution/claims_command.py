"""`claims`: what the chapter says, claim by claim, with verdicts, evidence, and the command that shows it."""

from __future__ import annotations

import argparse

from rich.console import Console

from evolution.history import data, tables


def claims_command(options: argparse.Namespace) -> int:
    chosen = [claim for claim in data.claims() if not options.verdict or claim.verdict in options.verdict]
    console = Console()
    console.print(tables.claims(chosen))
    console.print(tables.counts(chosen), soft_wrap=True)
    return 0
