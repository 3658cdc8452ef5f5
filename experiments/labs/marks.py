"""What the tests of every lab share: the mark that says which task a test belongs to, and the line of its cost."""

from __future__ import annotations

import pytest


def task(name: str) -> pytest.MarkDecorator:
    """The task of `tasks.toml` that this test is a part of. A task's points are given when all of its tests pass."""
    return pytest.mark.task(name)


def cost(text: str) -> None:
    """Print what the test found the student's code to cost (messages, bytes, CPU, a ratio): `labs grade` shows it."""
    print(f"cost: {text}")
