"""What may be said of a comparison, in sentences made by rule from its counts and intervals; and what is surprising.

A rule says that something differs, never why: an explanation is a person's, in DIR/notes.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from experiments.compare.measure import WAITS
from experiments.compare.metrics import COUNTS, TIMES, Metric, leaders
from experiments.compare.records import Arm, Plan, Run
from experiments.intervals import shown
from report.comparison import REFERENCE, Ratio, heading, number, tokens_verdict, values

# What the page's sentences are about; all metrics are in its tables.
SPOKEN = (
    "TTFT", "TPOT", "output throughput", "control plane of a turn", "control plane of a token",
    "CPU time a 1,000 tokens",
)  # fmt: skip
COUNTED = ("processes", "turns a 1,000 tokens", "messages a turn", "messages a 1,000 tokens", "collectives a turn",
           "context switches a 1,000 tokens")  # fmt: skip
OTHER_AT_MOST = 0.05  # of a turn
TP_AT_MOST = 0.05  # broadcast against peer: the same mechanism
SPREAD_AT_MOST = 1.5  # slowest over fastest run of an arm
ENOUGH_PAIRS = 6
NO_DIFFERENCE = "no difference seen"


@dataclass(frozen=True)
class Sentences:
    """`about`: a metric, with what it is compared with."""

    about: str
    lines: list[str]


@dataclass(frozen=True)
class Surprise:
    rule: str
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
    text = f"{median} times {against} {interval}"
    return f"unstable, {text}," if ratio.remark else text


# ---------------------------------------------------------------------- sentences


def count_sentences(plan: Plan, runs: list[Run]) -> list[Sentences]:
    """The counts of the arms of a shape side by side, where they are not all 0."""
    found = []
    for name in COUNTED:
        by_place: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for value in values(plan, runs, [metric_named(name)]):
            by_place[value.arm.constants, value.arm.shape][_who(plan, value.arm)] = number(value.median)
        by_line: dict[str, list[str]] = {}
        for kind in dict.fromkeys(kind for kind, _ in by_place):
            places: dict[tuple[str, str], list[str]] = defaultdict(list)
            for (of_kind, shape), counts in by_place.items():
                if of_kind == kind and set(counts.values()) != {"0"}:
                    places[" / ".join(counts), " / ".join(counts.values())].append(shape)
            for who in dict.fromkeys(who for who, _ in places):
                parts = [f"{counts} at {_list(shapes)}" for (of, counts), shapes in places.items() if of == who]
                by_line.setdefault(f"{who}: {'; '.join(parts)}.", []).append(kind)
        lines = [_kinds(plan, kinds) + line for line, kinds in by_line.items()]
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
        return f"{kind}{both}: {NO_DIFFERENCE} at {_list(places[NO_DIFFERENCE])}."
    # What was seen comes before what was not.
    parts = sorted(places.items(), key=lambda part: (part[0] == NO_DIFFERENCE, part[0].startswith("unstable")))
    return f"{kind}{above} " + "; ".join(f"{text} at {_list(shapes)}" for text, shapes in parts) + "."


def _names(plan: Plan, ratio: Ratio) -> tuple[str, str, str, str]:
    """(the constants if they are to be said, the one above, the possessive of the one below, both)."""
    above, below = ratio.above, ratio.below
    who = _who(plan, above)
    if above.stage == below.stage:
        return "", f"{who} with era constants", "its level's", f"{who} with era and with level constants"
    return _kinds(plan, [above.constants]), who, f"{_who(plan, below)}'s", f"{who} and {_who(plan, below)}"


def _who(plan: Plan, arm: Arm) -> str:
    words = heading(plan, arm).split("\n")
    return " ".join(word for word in words if word != arm.constants)


def _kinds(plan: Plan, kinds: list[str]) -> str:
    return f"{_list(kinds)}: " if len({arm.constants for arm in plan.arms}) > 1 else ""


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


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


# ---------------------------------------------------------------------- surprises


def surprises(plan: Plan, runs: list[Run], over_reference: list[Ratio], over_level: list[Ratio]) -> list[Surprise]:
    """What must be explained before it is believed."""
    found = [
        Surprise("The output tokens should be the same in every run", _tokens(runs)),
        Surprise(
            f"broadcast and {REFERENCE} bring a turn's input to the ranks by the same broadcast: at TP above 1, a "
            f"difference of more than {TP_AT_MOST:.0%} is suspicious until it is explained",
            _tensor_parallel(over_reference),
        ),
        Surprise(
            "A version's own sleeps, bursts and encodings (era) should not beat the level ones", _faster(over_level)
        ),
        Surprise(
            f"What no part of a turn claims (other) should stay below {OTHER_AT_MOST:.0%} of rank 0's turn",
            _share_of_turn(plan, runs, "other", OTHER_AT_MOST, ("level", "era")),
        ),
        Surprise(
            f"An arm's slowest run by TPOT should take less than {SPREAD_AT_MOST:g} times its fastest: something else "
            "than the stage was at work",
            _spread(plan, runs),
        ),
    ]
    return [surprise for surprise in found if surprise.lines]


def _tokens(runs: list[Run]) -> list[str]:
    return [tokens_verdict(runs) + "."] if len({run.tokens for run in runs}) > 1 else []


def _tensor_parallel(ratios: list[Ratio]) -> list[str]:
    against = f"{REFERENCE}'s"
    return [
        f"{one.metric.name} of {one.above.name}: {says(one, against)}."
        for one in ratios
        if one.metric.name in SPOKEN
        and one.above.stage == "broadcast"
        and one.above.tp_size > 1
        and not single(one)
        and not one.remark
        and abs(one.ratio["median"] - 1) > TP_AT_MOST
    ]


def _faster(ratios: list[Ratio]) -> list[str]:
    lines = []
    for one in ratios:
        if one.metric.name not in SPOKEN or single(one) or one.remark:
            continue
        better = one.ratio["high"] < 1 if one.metric.less_is_better else one.ratio["low"] > 1
        if better:
            said = says(one, "its level's")
            lines.append(f"{one.metric.name} of {one.above.name}: {said}.")
    return lines


def _share_of_turn(plan: Plan, runs: list[Run], part: str, at_most: float, kinds: tuple[str, ...]) -> list[str]:
    """Arms whose rank 0 spends more than that share of its turns (waits left out) in `part`."""
    lines = []
    for arm in plan.arms:
        shares = []
        for run in runs:
            of_turn = [turns.parts for turns in leaders(run)] if run.arm == arm else []
            whole = sum(wall for parts in of_turn for name, (wall, _) in parts.items() if name not in WAITS)
            if whole:
                shares.append(sum(parts.get(part, (0, 0))[0] for parts in of_turn) / whole)
        if shares and arm.constants in kinds and np.median(shares) > at_most:
            lines.append(f"{arm.name}: {part} is {np.median(shares):.1%} of rank 0's turn.")
    return lines


def _spread(plan: Plan, runs: list[Run]) -> list[str]:
    lines = []
    for value in values(plan, runs, [metric_named("TPOT")]):
        low, high = min(value.samples), max(value.samples)
        if low > 0 and high / low > SPREAD_AT_MOST:
            lines.append(f"{value.arm.name}: {number(low)} to {number(high)} ms in {len(value.samples)} runs.")
    return lines


# ---------------------------------------------------------------------- how far to trust it


def cautions(plan: Plan, runs: list[Run], null_test: bool) -> list[str]:
    """What the reader must know before the figures."""
    lines = []
    done = {arm: sum(run.arm == arm for run in runs) for arm in plan.arms}
    missing = [arm.name for arm, count in done.items() if count == 0]
    if len(runs) < len(plan.arms) * plan.repeats:
        lines.append(f"This comparison is not whole: {len(runs)} of {len(plan.arms) * plan.repeats} runs are there.")
    if missing:
        lines.append(f"Without any run: {_list(missing)}.")
    fewest = min((count for count in done.values() if count), default=0)
    if fewest == 1:
        lines.append("Some arms ran once: their intervals are a point, and nothing is said of a difference.")
    elif fewest < ENOUGH_PAIRS:
        covered = 1 - 2.0 ** (1 - fewest)
        lines.append(
            f"With {fewest} runs of an arm an interval reaches at most from the least to the largest pair, which holds "
            f"the true median in {covered:.0%} of the cases, not in 95%: {ENOUGH_PAIRS} runs are the fewest that can."
        )
    if len({arm.stage for arm in plan.arms}) > 1 and not any(arm.stage == REFERENCE for arm in plan.arms):
        lines.append(f"There is no arm of {REFERENCE}, so there are no ratios between stages.")
    cores = plan.environment.get("cpu_count") or 1
    ranks = max(arm.tp_size * arm.dp_size for arm in plan.arms)
    if ranks + 2 > cores:
        lines.append(
            f"Up to {ranks} ranks, main and a detokenizer share {cores} cores: where processes outnumber cores, times "
            "say more about the cores than about the stage."
        )
    if not null_test:
        lines.append(
            "No A/A test (null.json) lies beside these results: how often two arms that are alike would seem to differ "
            "was not measured here."
        )
    return lines
