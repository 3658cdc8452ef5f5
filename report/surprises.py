"""What must be explained before it is believed. A rule says that something is odd, never why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.compare.measure import IDLE
from experiments.compare.metrics import leaders
from experiments.compare.records import Plan, Run
from report.comparison import REFERENCE, Ratio, number, tokens_verdict, values
from report.findings import NO_DIFFERENCE, SPOKEN, metric_named, says, single
from report.words import of_many

OTHER_AT_MOST = 0.05  # of a turn
TP_AT_MOST = 0.05  # broadcast against peer: the same mechanism
SPREAD_AT_MOST = 1.5  # slowest over fastest run of an arm


@dataclass(frozen=True)
class Surprise:
    rule: str
    lines: list[str]


def surprises(plan: Plan, runs: list[Run], over_reference: list[Ratio], over_level: list[Ratio]) -> list[Surprise]:
    found = [
        Surprise("The output tokens should be the same in every run", _tokens(runs)),
        Surprise(
            f"broadcast and {REFERENCE} bring a turn's input to the ranks by the same broadcast: at TP above 1, a "
            f"difference of more than {TP_AT_MOST:.0%}, even an unstable one, is suspicious until it is explained",
            _tensor_parallel(over_reference),
        ),
        Surprise(
            "A version's own sleeps, bursts and encodings (era) should not beat the level ones", _faster(over_level)
        ),
        Surprise(
            f"What no part of a turn claims (other) should stay below {OTHER_AT_MOST:.0%} of rank 0's turn",
            _unclaimed(plan, runs),
        ),
        Surprise(
            f"An arm's slowest run by TPOT should take less than {SPREAD_AT_MOST:g} times its fastest: something else "
            "than the stage may have been at work",
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
        and one.remark != NO_DIFFERENCE
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


def _unclaimed(plan: Plan, runs: list[Run]) -> list[str]:
    """Arms whose rank 0 spends more than OTHER_AT_MOST of its turns, without idle, in `other`."""
    lines = []
    for arm in plan.arms:
        shares = []
        for run in runs:
            of_turn = [turns.parts for turns in leaders(run)] if run.arm == arm else []
            whole = sum(wall for parts in of_turn for name, (wall, _) in parts.items() if name != IDLE)
            if whole:
                shares.append(sum(parts.get("other", (0, 0))[0] for parts in of_turn) / whole)
        if shares and np.median(shares) > OTHER_AT_MOST:
            lines.append(f"{arm.name}: other is {np.median(shares):.1%} of rank 0's turn.")
    return lines


def _spread(plan: Plan, runs: list[Run]) -> list[str]:
    lines = []
    for value in values(plan, runs, [metric_named("TPOT")]):
        low, high = min(value.samples), max(value.samples)
        if low > 0 and high / low > SPREAD_AT_MOST:
            count = of_many(len(value.samples), "run")
            lines.append(f"{value.arm.name}: {number(low)} to {number(high)} ms in {count}.")
    return lines
