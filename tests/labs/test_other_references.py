"""A lab may have more than one good solution: each that the instructor keeps gets every point."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolution.labs.catalog import Lab
from evolution.labs.grade import grade
from tests.labs.shared import ALL, instructor

OTHERS = [
    pytest.param(lab, path, id=f"lab{lab.number}-{path.name}")
    for lab in ALL
    for path in sorted(instructor(lab).glob("reference_*"))
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("lab", "folder"), OTHERS)
def test_it_gets_every_point(lab: Lab, folder: Path) -> None:
    result = grade(lab, [folder], hidden=instructor(lab))
    failed = {test.name: test.message for task in result.tasks for test in task.tests if test.outcome != "passed"}
    assert not failed, result.output
    assert (result.points, result.left) == (100, ())
