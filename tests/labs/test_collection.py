"""Skeletons fail on purpose, so the project's own pytest must not come upon the labs' tests."""

from __future__ import annotations

import os
import subprocess
import sys

from evolution.labs.catalog import LABS
from tests.labs.shared import ALL


def collected(*where: str) -> str:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *where]
    quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=LABS.parents[1], env=quick, capture_output=True, text=True).stdout


def test_they_are_not_collected() -> None:
    assert "no tests collected" in collected("experiments", "experiments/labs")


def test_they_are_when_they_are_named() -> None:
    assert f"{ALL[0].name}/test_lab.py::" in collected(str(ALL[0].folder / "test_lab.py"))
