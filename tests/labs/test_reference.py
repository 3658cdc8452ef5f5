"""The reference of each lab gets every point; the skeleton fails each graded test, and nothing else."""

from __future__ import annotations

import pytest

from evolution.labs.catalog import Lab
from evolution.labs.grade import Grade, grade
from tests.labs.shared import ALL, instructor


def outcomes(result: Grade) -> dict[str, tuple[str, str]]:
    tests = [*(test for task in result.tasks for test in task.tests), *result.ungraded]
    return {test.name: (test.outcome, test.message) for test in tests}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "lab", [pytest.param(lab, id=lab.name, marks=[pytest.mark.slow] if lab.slow else []) for lab in ALL]
)
def test_the_reference_gets_every_point(lab: Lab) -> None:
    result = grade(lab, [instructor(lab) / "reference"], hidden=instructor(lab))
    failed = {name: said for name, said in outcomes(result).items() if said[0] != "passed"}
    assert not failed, result.output
    assert (result.points, result.possible) == (100, 100)
    assert result.left == ()  # a good solution leaves nothing to be killed
    for task in result.tasks:
        public = [test for test in task.tests if test.name.startswith("test_lab.py::")]
        assert public and len(public) < len(task.tests), f"{task.task.name} has no public or no hidden test"
        assert any(test.cost for test in task.tests), f"{task.task.name} says of no cost"
        assert all(test.limit for test in task.tests), f"a test of {task.task.name} has no timeout of its own"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lab", ALL, ids=lambda lab: lab.name)
def test_the_skeleton_fails_exactly_the_graded_tests(lab: Lab) -> None:
    result = grade(lab, hidden=instructor(lab))
    wrong = {test.name: test.outcome for task in result.tasks for test in task.tests if test.outcome != "unwritten"}
    assert not wrong, result.output
    assert [test.outcome for test in result.ungraded] == ["passed"] * len(result.ungraded)
    assert (result.points, result.timed_out, result.left) == (0, False, ())
    assert all(task.tests for task in result.tasks)
