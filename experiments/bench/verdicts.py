"""Verdicts of several bounds as one, and in words. Each is "holds", "undecided" or "fails"; None: there is no bound."""

from __future__ import annotations

from collections.abc import Iterable


def combined(verdicts: Iterable[str | None]) -> str | None:
    """ "fails" if any fails, else "undecided" if any is; None if there is no bound at all."""
    found = set(verdicts)
    return next((word for word in ("fails", "undecided", "holds") if word in found), None)


def in_words(verdicts: Iterable[str | None]) -> str:
    """`9 hold, 7 undecided, 0 fail`"""
    found = list(verdicts)
    if combined(found) is None:
        return "no bound to keep"
    return f"{found.count('holds')} hold, {found.count('undecided')} undecided, {found.count('fails')} fail"
