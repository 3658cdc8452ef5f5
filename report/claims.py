"""What `claims --run --json FILE` measured, on the page of a comparison: a row for each count and ratio."""

from __future__ import annotations

from typing import Any

import msgspec

from report.table_files import Cell, Group, TableFile
from report.words import micro, of_many

TITLE = "Predicted against measured"
COLUMNS = ["number", "claim", "verdict", "what was run", "predicted", "measured", "came out"]


class Bound(msgspec.Struct):
    """A count or a ratio that was predicted, as a file holds it; without `measured` and `holds` where none came."""

    what: str
    allowed: str
    measured: str = ""
    holds: str = ""


class Row(msgspec.Struct):
    number: int
    claim: str
    judged: str
    how: str
    bounds: list[Bound]
    error: str
    came_out: str


def what_is_wrong(result: dict[str, Any]) -> str:
    """Of a file that should hold what this page shows; "" if nothing is."""
    try:
        msgspec.convert(result.get("claims"), list[Row])
    except msgspec.ValidationError as error:
        return f"claims: {error}"
    return ""


def table(result: dict[str, Any]) -> TableFile:
    """In the CSV every row is whole; on the page a claim's own words stand in its first."""
    lines, shown = [], []
    for row in result["claims"]:
        own = [row["claim"], row["judged"], row["how"]]
        for place, bound in enumerate(row["bounds"]):
            cells = _of_bound(bound, row["error"])
            lines.append([str(row["number"]), *own, *cells])
            words = own if place == 0 else ["", "", ""]
            shown.append((str(row["number"]), [Cell(text) for text in (*words, *cells)]))
    return TableFile("claims", TITLE, [Group("", COLUMNS[1:], shown, words=True)], COLUMNS, lines)


def _of_bound(bound: dict[str, Any], error: str) -> list[str]:
    predicted = micro(f"{bound['what']}: {bound['allowed']}")
    return [predicted, *((bound["measured"], bound["holds"]) if "holds" in bound else (error, "not measured"))]


def summary(result: dict[str, Any]) -> str:
    said = ["not measured" if row["error"] else row["came_out"] for row in result["claims"]]
    return (
        f"{of_many(len(said), 'claim')} of a chapter that tells this history, each with a prediction that was stated"
        f" before its run: {said.count('yes')} came out as predicted, {said.count('no')} did not,"
        f" {said.count('undecided')} undecided, {said.count('not measured')} could not be measured. Of a claim that is"
        " wrong, what is true instead was predicted."
    )
