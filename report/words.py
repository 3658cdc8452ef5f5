"""Words that the page, its pictures and its tables share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from experiments.compare.records import Arm, Plan
from experiments.intervals import ENOUGH, coverage
from report.comparison import heading


def interval_words(counts: Iterable[int]) -> str:
    """What the interval of a median of so many samples is to be called: "95% interval" only where each has enough."""
    found = sorted(counts)
    fewest, most = found[0], found[-1]
    if fewest >= ENOUGH:
        return "95% interval"
    if most < ENOUGH:
        span = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return f"range (of {span}: less sure than a 95% interval)"
    return f"95% interval (of fewer than {ENOUGH} the range, which is less sure)"


def coverage_words(counts: Iterable[int]) -> str:
    """How sure the intervals of so many samples are, as "50%" or "95 to 98%"."""
    shares = sorted({round(100 * coverage(n)) for n in counts})
    return f"{shares[0]}%" if len(shares) == 1 else f"{shares[0]} to {shares[-1]}%"


def micro(text: str) -> str:
    """Units for a reader: µs, where code and files have us."""
    return re.sub(r"\bus\b", "µs", text)


def of_many(count: int, what: str) -> str:
    """ "1 interval", "2 intervals"."""
    return f"{count} {what}{'s' * (count != 1)}"


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def constants_said(plan: Plan, kinds: list[str]) -> str:
    """`level: ` in front of a sentence, where the plan has several kinds."""
    return f"{listed(kinds)}: " if len({arm.constants for arm in plan.arms}) > 1 else ""


def who(plan: Plan, arm: Arm) -> str:
    """What tells the arm from others of its shape and constants."""
    return " ".join(word for word in heading(plan, arm).split("\n") if word != arm.constants)
