"""tests/public_reports.md names tests that exist, and has an answer to each report."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests/public_reports.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| report |")
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_is_named_exists() -> None:
    named = [pair for row in ROWS for pair in TEST.findall(row[2])]
    assert len(named) > 80
    for file, name in named:
        text = (ROOT / file).read_text()
        assert re.search(rf"^(def |async def |){name}\b", text, re.MULTILINE), f"{file} has no {name}"


def test_every_report_has_a_test_or_a_reason() -> None:
    for row in ROWS:
        report, what, answer = row
        assert report and what
        assert TEST.search(answer) or answer.startswith("Not here: "), report


def test_no_report_is_told_twice() -> None:
    reports, project = [], ""
    for row in ROWS:
        for name in row[0].split(", "):
            # A number alone belongs to the project before it in its row, or to SGLang.
            project, number = name.split(" ") if " " in name else (project, name)
            reports.append((project, number))
        project = ""
    assert len(reports) > 100
    assert len(set(reports)) == len(reports)
