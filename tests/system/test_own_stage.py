"""A stage of a user's own is judged by the same suite: the example passes, the wrong one fails and does not hang."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def judge(stage: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "tests/conformance", "--stage", stage, "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def counted(output: str, word: str) -> int:
    found = re.search(rf"(\d+) {word}", output)
    return int(found[1]) if found else 0


def test_the_example_is_short():
    assert len((ROOT / "tests/examples/pipe_stage.py").read_text().splitlines()) <= 80


@pytest.mark.timeout(300)
def test_the_example_passes():
    result = judge("tests.examples.pipe_stage:launch", timeout=280)
    assert result.returncode == 0, result.stdout
    assert counted(result.stdout, "passed") > 15
    assert counted(result.stdout, "failed") == 0


@pytest.mark.timeout(300)
@pytest.mark.slow  # a minute and a half
def test_the_wrong_one_fails_and_does_not_hang():
    result = judge("tests.examples.wrong_stage:launch", "--maxfail", "2", "-k", "as_without or abort", timeout=280)
    assert result.returncode == 1
    assert counted(result.stdout, "failed") == 2, result.stdout
    assert "no outcome" in result.stdout
