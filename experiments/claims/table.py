"""What `claims --run` prints: a line before and one after each run, then all of them in a table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from evolution.history.data import Claim
from evolution.history.tables import CLAIM_STYLES
from experiments.claims.trial import Outcome, Trial

COLUMNS = ("", "claim", "verdict", "predicted", "measured", "came out")
STYLES = {"yes": "green", "no": "bold red", "undecided": "yellow", "not measured": "bold red"}


def before(trial: Trial, place: int, count: int, remaining: float) -> str:
    """The prediction stands there before anything is measured."""
    head = f"[{place}/{count}, about {remaining:.0f} s left] claim {trial.number}: {trial.how}"
    return "\n".join([head, *(f"  predicted  {bound}" for bound in trial.predicted)])


def after(outcome: Outcome) -> str:
    """What was measured, in the order of what was predicted."""
    pairs = zip(outcome.trial.predicted, outcome.samples, strict=False)  # of a run that ended there are no samples
    values = outcome.error or "; ".join(bound.measured(samples) for bound, samples in pairs)
    return f"  measured   {values}\n  came out   {came_out(outcome)}, in {outcome.seconds:.0f} s"


def came_out(outcome: Outcome) -> str:
    return "not measured" if outcome.error else outcome.holds


def outcomes(claims: dict[int, Claim], found: list[Outcome]) -> Table:
    """A row for each count and ratio; a claim's own words stand in its first."""
    table = Table(title="Predicted against measured", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for outcome in found:
        claim = claims[outcome.trial.number]
        own = (str(claim.number), claim.claim, Text(claim.verdict, style=CLAIM_STYLES[claim.verdict]))
        for place, bound in enumerate(outcome.trial.predicted):
            measured, said = outcome.error if place == 0 else "", came_out(outcome)
            if not outcome.error:
                measured, said = bound.measured(outcome.samples[place]), bound.holds(outcome.samples[place])
            table.add_row(*(own if place == 0 else ("", "", "")), str(bound), measured, Text(said, style=STYLES[said]))
        table.add_section()
    return table


def counts(found: list[Outcome], seconds: float) -> str:
    """`33 claims were run in 300 s: 31 came out as predicted, 1 did not, 1 is undecided, 0 could not be measured`."""
    said = [came_out(outcome) for outcome in found]
    return (
        f"{len(found)} claims were run in {seconds:.0f} s: {said.count('yes')} came out as predicted,"
        f" {said.count('no')} did not, {said.count('undecided')} undecided, {said.count('not measured')} not measured"
    )
