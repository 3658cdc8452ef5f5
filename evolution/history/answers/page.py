"""What an answer page is, and what several of them use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True)
class Sources:
    """A user's own: a folder of wheels, a clone. Answers do without them, and look there if they may."""

    wheels: Path | None = None
    repo: Path | None = None


@dataclass(frozen=True)
class Answer:
    """`show` runs something and prints it; whether it came out as `text` says. `more`: what measures it further."""

    question: str
    text: str
    show: Callable[[Console, Sources], bool]
    more: str = ""


def verdict(console: Console, what: str, holds: bool) -> bool:
    console.print(f"{'as said' if holds else '[bold red]not as said[/bold red]'}: {what}", soft_wrap=True)
    return holds
