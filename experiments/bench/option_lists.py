"""Options that are lists, separated by commas. What is wrong with one is a ValueError of one line."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


def check_repeats(repeats: int, flag: str = "--repeats") -> None:
    if repeats < 1:
        raise ValueError(f"{flag} must be at least 1, not {repeats}")


def numbers(flag: str, text: str, least: int, expected: str) -> list[int]:
    """Whole numbers from `least` on, in the order given."""
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and int(word) >= least for word in words):
        raise ValueError(f"{flag} {text!r}: {expected}")
    found = [int(word) for word in words]
    check_once(flag, found)
    return found


def names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """In the order of `known`."""
    known, words = list(known), text.split(",")
    for name in words:
        if name not in known:
            raise ValueError(f"{flag}: there is no {name!r}; there are {', '.join(known)}")
    check_once(flag, words)
    return [name for name in known if name in words]


def check_once(flag: str, found: Sequence[Hashable]) -> None:
    for number, one in enumerate(found):
        if one in found[:number]:
            shown = "+".join(map(str, one)) if isinstance(one, tuple) else one
            raise ValueError(f"{flag}: {shown} is there twice; give it once")
