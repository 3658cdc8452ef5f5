"""What may be said of a comparison, in sentences made by rule from its counts and intervals.

A rule says that something differs, never why: an explanation is a person's, in DIR/notes.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from experiments.compare.metrics import COUNTS, TIMES, Metric
from experiments.compare.records import Arm, Plan, Run
from experiments.intervals import ENOUGH, NO_DIFFERENCE, coverage, shown
from report.cautions import null_figures, null_is_of
from report.comparison import REFERENCE, Ratio, number, tokens_verdict, values
from report.words import constants_said, listed, of_many, who

# What the page's sentences are about; all metrics are in its tables.
SPOKEN = (
    "TTFT", "TPOT", "output throughput", "control plane of a turn", "control plane of a token",
    "CPU time a 1,000 tokens",
)  # fmt: skip
COUNTED = ("processes", "turns a 1,000 tokens", "messages a turn", "messages a 1,000 tokens", "collectives a turn",
           "context switches a 1,000 tokens")  # fmt: skip


@dataclass(frozen=True)
class Sentences:
    """`about`: a metric, with what it is compared with."""

    about: str
    lines: list[str]


def metric_named(name: str) -> Metric:
    return next(metric for metric in COUNTS + TIMES if metric.name == name)


def single(ratio: Ratio) -> bool:
    """Whether there is one pair, and so no interval."""
    return len(ratio.ratio["pairs"]) == 1


def says(ratio: Ratio, against: str) -> str:
    """What its interval allows to say, without where. `against`: possessive, as in "peer's"."""
    median, interval = shown(ratio.ratio).split(" ", 1)
    if single(ratio):
        return f"{median} times {against} in the only pair (so nothing follows)"
    if ratio.remark == NO_DIFFERENCE:
        return NO_DIFFERENCE
    return f"{median} times {against} {interval}{' (unstable)' * bool(ratio.remark)}"


# ---------------------------------------------------------------------- sentences


def count_sentences(plan: Plan, runs: list[Run]) -> list[Sentences]:
    """The counts of the arms of a shape side by side, where they are not all 0."""
    found = []
    for name in COUNTED:
        by_place: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for value in values(plan, runs, [metric_named(name)]):
            by_place[value.arm.constants, value.arm.shape][who(plan, value.arm)] = number(value.median)
        by_line: dict[str, list[str]] = {}
        for kind in dict.fromkeys(kind for kind, _ in by_place):
            places: dict[tuple[str, str], list[str]] = defaultdict(list)
            for (of_kind, shape), counts in by_place.items():
                if of_kind == kind and set(counts.values()) != {"0"}:
                    places[" / ".join(counts), " / ".join(counts.values())].append(shape)
            for names in dict.fromkeys(names for names, _ in places):
                parts = [f"{counts} at {listed(shapes)}" for (of, counts), shapes in places.items() if of == names]
                by_line.setdefault(f"{names}: {'; '.join(parts)}.", []).append(kind)
        lines = [constants_said(plan, kinds) + line for line, kinds in by_line.items()]
        if lines:
            found.append(Sentences(name, lines))
    return found


def ratio_sentences(plan: Plan, ratios: list[Ratio]) -> list[Sentences]:
    """Of stage pairs or of era pairs: for each metric a sentence for every two that are compared."""
    found = []
    for name in SPOKEN:
        by_pair: dict[tuple[str, str, str, str], list[Ratio]] = defaultdict(list)
        for ratio in ratios:
            if ratio.metric.name == name:
                by_pair[_names(plan, ratio)].append(ratio)
        lines = [_ratio_sentence(*names, group) for names, group in by_pair.items()]
        if lines:
            found.append(Sentences(name, lines))
    return found


def _ratio_sentence(kind: str, above: str, against: str, both: str, group: list[Ratio]) -> str:
    places: dict[str, list[str]] = defaultdict(list)
    for ratio in group:
        places[says(ratio, against)].append(ratio.above.shape)
    if list(places) == [NO_DIFFERENCE]:
        return f"{kind}{both}: {NO_DIFFERENCE} at {listed(places[NO_DIFFERENCE])}."
    # What was seen comes before what was not.
    parts = sorted(places.items(), key=lambda part: (part[0] == NO_DIFFERENCE, "(unstable)" in part[0]))
    return f"{kind}{above} " + "; ".join(f"{text} at {listed(shapes)}" for text, shapes in parts) + "."


def _names(plan: Plan, ratio: Ratio) -> tuple[str, str, str, str]:
    """(the constants if they are to be said, the one above, the possessive of the one below, both)."""
    above, below = ratio.above, ratio.below
    above_name, below_name = who(plan, above), who(plan, below)
    if above.stage == below.stage:
        both = f"{above_name} with era and with level constants"
        return "", f"{above_name} with era constants", "its level's", both
    kind = constants_said(plan, [above.constants])
    return kind, above_name, f"{below_name}'s", f"{above_name} and {below_name}"


def turn_against_token(plan: Plan, ratios: list[Ratio]) -> list[str]:
    """Where a turn and a token say the opposite: a burst of decode steps is dear per turn and cheap per token."""
    by_pair: dict[tuple[Arm, Arm], dict[str, Ratio]] = defaultdict(dict)
    for ratio in ratios:
        by_pair[ratio.above, ratio.below][ratio.metric.name] = ratio
    lines = []
    for (above, _), found in by_pair.items():
        turn, token = found.get("control plane of a turn"), found.get("control plane of a token")
        if turn is None or token is None or single(turn) or turn.remark or token.remark:
            continue
        if turn.ratio["low"] > 1 > token.ratio["high"]:
            lines.append(
                f"{above.name}: its control plane costs {shown(turn.ratio)} times {_names(plan, turn)[2]} per turn, and"
                f" {shown(token.ratio)} times per token: dearer by the turn, cheaper by the token."
            )
    return lines


# ---------------------------------------------------------------------- in short


def judged(ratios: list[Ratio]) -> list[Ratio]:
    """Those that the sentences are made of and that have an interval."""
    return [one for one in ratios if one.metric.name in SPOKEN and not single(one)]


def multiplicity(ratios: list[Ratio]) -> str:
    """How many differences chance alone would show; "" where there is no interval."""
    found = judged(ratios)
    by_chance = sum(1 - coverage(len(one.ratio["pairs"])) for one in found)
    if not found:
        return ""
    return (
        f"{of_many(len(found), 'interval')} {'is' if len(found) == 1 else 'are'} judged here; where nothing differs "
        f"about {number(round(by_chance, 1))} of them would still seem to."
    )


def in_short(
    plan: Plan, runs: list[Run], over_reference: list[Ratio], over_level: list[Ratio], null: dict[str, Any] | None
) -> list[Sentences]:
    """Five lines at most, each by rule."""
    processes = [one.lines for one in count_sentences(plan, runs) if one.about == "processes"]
    level = [one for one in over_reference if one.above.constants == "level"]
    found = [Sentences("Output tokens", [tokens_verdict(runs).capitalize() + "."])]
    found += [Sentences("Processes", lines) for lines in processes]
    if level:
        found.append(Sentences(f"Level constants, over {REFERENCE}", [_tally(plan, level)]))
    if over_level:
        found.append(Sentences("Era over level constants", [_tally(plan, over_level)]))
    if null is None:
        found.append(Sentences("A/A test", ["There is none beside these results."]))
    elif not null_is_of(plan, null):
        found.append(Sentences("A/A test", ["The one beside these results is of another device or CPU."]))
    else:
        found.append(Sentences("A/A test", [f"{null['verdict'].capitalize()}: {null_figures(null)}."]))
    return found


def _tally(plan: Plan, ratios: list[Ratio]) -> str:
    """How many of the intervals differ, and which most."""
    intervals = judged(ratios)
    if not intervals:
        return "One pair of runs each, so nothing follows."
    differ = [one for one in intervals if not one.remark]
    unstable = sum(one.remark not in ("", NO_DIFFERENCE) for one in intervals)
    fewest = min(len(one.ratio["pairs"]) for one in intervals)
    kind = "95% intervals" if fewest >= ENOUGH else f"ranges (from {fewest} pairs on: too few for 95%)"
    text = f"Of {len(intervals)} {kind} {len(differ)} {'differs' if len(differ) == 1 else 'differ'} from 1"
    text += f", {unstable} {'is' if unstable == 1 else 'are'} unstable" * bool(unstable)
    if not differ:
        return text + "."
    most = max(differ, key=lambda one: abs(math.log(one.ratio["median"])))
    _, above, against, _ = _names(plan, most)
    return f"{text}; the largest: {most.metric.name} of {above}, {says(most, against)} at {most.above.shape}."
