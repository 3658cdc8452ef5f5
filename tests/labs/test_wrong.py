"""Each wrong solution loses exactly the tasks that it should; one that hangs ends in its timeout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evolution.labs.catalog import Lab, Task
from evolution.labs.grade import Grade, grade
from tests.labs.shared import ALL, Wrong, instructor, wrong_solutions

TEN = (3, 7)  # labs with ten wrong solutions, the others have five
EVERY = [wrong for lab in ALL for wrong in wrong_solutions(lab)]


def graded(wrong: Wrong, folder: Path, task: Task | None = None) -> Grade:
    """It may hold only what differs: beside it lies the reference's `solution.py`, as `reference_solution.py`. folder:
    an empty one."""
    reference = instructor(wrong.lab) / "reference"
    for path in instructor(wrong.lab).glob("*.py"):
        shutil.copy(path, folder)
    for name in wrong.lab.files:
        shutil.copy(reference / name, folder / f"reference_{name}")
    return grade(wrong.lab, [reference, wrong.folder], hidden=folder, task=task)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wrong", EVERY, ids=lambda wrong: wrong.id)
def test_it_loses_what_it_should(wrong: Wrong, tmp_path: Path) -> None:
    result = graded(wrong, tmp_path)
    lost = [task.task.name for task in result.tasks if task.points == 0]
    assert lost == sorted(wrong.loses), result.output
    outcomes = {test.outcome for task in result.tasks for test in task.tests}
    assert ("timeout" in outcomes) == wrong.hangs, result.output


@pytest.mark.timeout(300)
@pytest.mark.parametrize("wrong", [one for one in EVERY if one.cheap and not one.lab.slow], ids=lambda wrong: wrong.id)
def test_it_loses_its_first_task(wrong: Wrong, tmp_path: Path) -> None:
    """The quickest of each lab, and only what it loses: whether it keeps the rest takes as long as the reference."""
    (lost,) = graded(wrong, tmp_path, wrong.lab.find_task(wrong.loses[0])).tasks
    assert lost.tests and lost.points == 0


@pytest.mark.parametrize("lab", ALL, ids=lambda lab: lab.name)
def test_there_are_enough(lab: Lab) -> None:
    mine = wrong_solutions(lab)
    assert len(mine) >= (10 if lab.number in TEN else 5)
    assert sum(wrong.cheap for wrong in mine) == 1, "one of them, and no more, runs in `make test`"
    assert any(wrong.hangs for wrong in mine)
    assert all(wrong.why and wrong.loses for wrong in mine)
    assert {name for wrong in mine for name in wrong.loses} <= {task.name for task in lab.tasks}
