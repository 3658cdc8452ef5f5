"""Each wrong solution loses exactly the tasks that it should; one that hangs ends in its timeout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evolution.labs.catalog import Lab
from evolution.labs.grade import grade
from tests.labs.shared import ALL, Wrong, instructor, wrong_solutions

TEN = (3, 7)  # labs with ten wrong solutions, the others have five
EVERY = [wrong for lab in ALL for wrong in wrong_solutions(lab)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "wrong", [pytest.param(one, id=one.id, marks=[] if one.cheap else [pytest.mark.slow]) for one in EVERY]
)
def test_it_loses_what_it_should(wrong: Wrong, tmp_path: Path) -> None:
    """It may hold only what differs: beside it lies the reference's `solution.py`, as `reference_solution.py`."""
    reference = instructor(wrong.lab) / "reference"
    for path in instructor(wrong.lab).glob("*.py"):
        shutil.copy(path, tmp_path)
    for name in wrong.lab.files:
        shutil.copy(reference / name, tmp_path / f"reference_{name}")
    result = grade(wrong.lab, [reference, wrong.folder], hidden=tmp_path)
    lost = [task.task.name for task in result.tasks if task.points == 0]
    assert lost == sorted(wrong.loses), result.output
    outcomes = {test.outcome for task in result.tasks for test in task.tests}
    assert ("timeout" in outcomes) == wrong.hangs, result.output


@pytest.mark.slow
@pytest.mark.parametrize("lab", ALL, ids=lambda lab: lab.name)
def test_there_are_enough(lab: Lab) -> None:
    mine = wrong_solutions(lab)
    assert len(mine) >= (10 if lab.number in TEN else 5)
    assert sum(wrong.cheap for wrong in mine) == 1, "one of them, and no more, runs in `make test`"
    assert any(wrong.hangs for wrong in mine)
    assert all(wrong.why and wrong.loses for wrong in mine)
    assert {name for wrong in mine for name in wrong.loses} <= {task.name for task in lab.tasks}
