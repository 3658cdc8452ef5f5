"""The self-test's four questions and the three exercises: an answer in a few lines, then something that runs."""

from __future__ import annotations

from rich.console import Console

from evolution.history.answers import exercises, self_test
from evolution.history.answers.page import Answer, Sources

PAGES: dict[str, Answer] = {**self_test.PAGES, **exercises.PAGES}


def give_answers(console: Console, names: list[str], sources: Sources) -> bool:
    """Prints each page; whether everything that ran came out as its text says."""
    as_said = True
    for name in names:
        page = PAGES[name]
        console.print(f"[bold]{name}: {page.question}[/bold]")
        console.print(page.text)
        console.print()
        as_said = page.show(console, sources) and as_said
        if page.more:
            console.print(f"further: python -m evolution {page.more}", style="dim", soft_wrap=True)
        console.print()
    return as_said
