"""What `history` and `claims` print, from the data alone."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evolution.history import data
from evolution.history.data import Claim, Commit, Constant, Line, Listing, Tradeoff
from evolution.history.outcomes import AGREES, DIFFERS, UNKNOWN, Outcome
from evolution.history.trees import MODELS, Sizes
from evolution.history_args import VERDICTS
from evolution.processes_command import rich_tree

CLAIM_STYLES = {"true": "green", "partly": "yellow", "wrong": "red", "not checkable": "dim"}
OUTCOME_STYLES = {AGREES: "green", DIFFERS: "bold red", UNKNOWN: "dim"}


def listings(found: dict[str, Listing]) -> RenderableType:
    """The releases that the chapter shows: the Python files of managers/ and their numbers of lines."""
    parts: list[RenderableType] = [
        Text("managers/ in four releases, each file with its number of lines", style="italic")
    ]
    for version in data.SHOWN:
        listing = found[version]
        parts.append(Text(f"v{version}, {listing.date}, {len(listing.files)} files", style="bold"))
        parts.append(Text("   ".join(f"{name}\N{NO-BREAK SPACE}{count}" for name, count in listing.files.items())))
    return Group(*parts)


def commits(found: list[Commit]) -> RenderableType:
    table = Table(title="Seven commits", title_justify="left", show_lines=True)
    for name in ("day", "commit", "title", "first in", "what it did"):
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(one.date, one.hash, one.title, one.release, one.did)
    return table


def trees(sizes: Sizes) -> RenderableType:
    """Each model's tree at `sizes`; with one replica, one stage or without the attention kind where it had no more."""
    parts: list[RenderableType] = []
    for model in MODELS:
        own = Sizes(
            sizes.tp,
            1 if model.without_dp else sizes.dp,
            sizes.pp if model.today else 1,
            sizes.dp_attention and model.today,
        )
        root = model.tree(own)
        formulas = "; ".join(f"{case}: {formula}" for case, formula in model.formulas.items())
        said = f"T = {own.tp}, D = {own.dp}" + (f", P = {own.pp}" if model.today else "")
        if own != sizes:
            said += "; it had no more"
        title = Text(f"{model.releases}: {len(root.walk())} processes at {said}", style="bold")
        parts += [title, Text(f"  {formulas}", style="dim"), rich_tree(root), Text()]
    return Group(*parts)


def constants(rows: list[Constant]) -> RenderableType:
    """A line for each value, with the releases that had it; below each name what the constant does."""
    table = Table(title="Constants by release", title_justify="left", show_lines=True)
    for name in ("constant", "by release", "where it was read"):
        table.add_column(name, overflow="fold")
    for row in rows:
        name = Text(row.name) + Text(f"\n{row.effect}" if row.effect else "", style="dim")
        table.add_row(name, Text(by_release(row.values)), Text(evidence(row.lines, []), style="dim"))
    return table


def by_release(values: dict[str, str]) -> str:
    """`0.1.5: 2`, a line each; neighbours with the same value share one, as `0.2.0 to 0.4.0: 1`."""
    spans: list[tuple[str, str, str]] = []
    for version, value in values.items():
        if spans and spans[-1][2] == value:
            spans[-1] = (spans[-1][0], version, value)
        else:
            spans.append((version, version, value))
    return "\n".join(f"{first if first == last else f'{first} to {last}'}: {value}" for first, last, value in spans)


def tradeoffs(rows: list[Tradeoff]) -> RenderableType:
    table = Table(title="Trade-offs", title_justify="left", show_lines=True)
    names = ("design", "how a request reaches every rank", "where it is scheduled", "the price", "corrects claims")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        numbers = ", ".join(map(str, row.corrects))
        price = Text(row.price) + Text(f"\n{evidence(row.lines, [])}", style="dim")
        table.add_row(row.design, row.reaches_ranks_by, row.scheduling, price, numbers)
    return table


def claims(rows: list[Claim]) -> RenderableType:
    table = Table(title="The chapter's claims", title_justify="left", show_lines=True)
    for name in ("", "claim", "verdict", "why, and where to look", "shown by python -m evolution ..."):
        table.add_column(name, overflow="fold")
    for row in rows:
        verdict = Text(row.verdict, style=CLAIM_STYLES[row.verdict])
        where = Text(f"\n{evidence(row.lines, row.threads)}", style="dim")
        table.add_row(str(row.number), row.claim, verdict, Text(row.because) + where, _shown_by(row))
    return table


def _shown_by(row: Claim) -> Text:
    lines = []
    if row.experiment:
        lines += [Text(row.experiment.command, style="cyan"), Text(row.experiment.shows)]
    if row.measured:
        lines.append(Text(f"measured by claims --run --only {row.number}", style="dim"))
    return Text("\n").join(lines)


def evidence(lines: list[Line], threads: list[int]) -> str:
    """`0.1.5 router/model_rpc.py:96-111, #646`; a release is named once for the lines that follow it."""
    parts = []
    version = None
    for line in lines:
        parts.append(str(line) if line.version != version else str(line).removeprefix(f"{version} "))
        version = line.version
    return ", ".join([*parts, *(f"#{number}" for number in threads)])


def counts(rows: list[Claim]) -> str:
    """`61 claims: 29 true, ...; 40 with a command that shows it, 33 measured by --run`."""
    verdicts = [row.verdict for row in rows]
    by_verdict = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    shown = sum(row.experiment is not None for row in rows)
    measured = sum(row.measured for row in rows)
    return f"{len(rows)} claims: {by_verdict}; {shown} with a command that shows it, {measured} measured by --run"


def outcomes(rows: list[Outcome]) -> RenderableType:
    table = Table(title="Checked", title_justify="left")
    for name in ("what", "", "found"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row.what, Text(row.outcome, style=OUTCOME_STYLES[row.outcome]), Text(row.detail))
    return table
