"""Stop strings: where text ends, and how much of it must wait. Shared by the scheduler and the detokenizer.

The scheduler ends a request as soon as `find_stop` finds a match; the detokenizer keeps `held_back` characters to
itself meanwhile, so that no part of a stop string is ever streamed.
"""

from __future__ import annotations

from collections.abc import Sequence


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that ends first in `text` and the index where it starts; among equal ends the first listed.

    The one that ends first is the one that a token-by-token generation meets first.
    """
    best: tuple[int, str] | None = None
    for stop in stops:
        start = text.find(stop)
        if start >= 0 and (best is None or start + len(stop) < best[0] + len(best[1])):
            best = (start, stop)
    return best


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many trailing characters of `text` may be the start of a stop string that is not complete yet.

    Per stop string only the last len(stop) - 1 characters are looked at, however long the text is.
    """
    held = 0
    for stop in stops:
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0:
            if stop.startswith(text[start:]):
                held = max(held, len(text) - start)
                break
            start = text.find(stop[0], start + 1)
    return held
