"""The sentences of a report: what the intervals allow to say, what is flagged, and what must be known before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from experiments.compare.metrics import TIMES
from experiments.compare.records import Arm, Run
from report import findings
from report.cautions import cautions
from report.comparison import era_pairs, ratios, stage_pairs
from report.surprises import surprises
from tests.helpers import comparison
from tests.helpers.comparison import arm

PEER, BROADCAST, RPYC = arm("peer"), arm("broadcast"), arm("rpyc")


def runs_of(scales: dict[Arm, list[float]]) -> list[Run]:
    return [comparison.run(of, repeat, scale) for of, several in scales.items() for repeat, scale in enumerate(several)]


def sentences(scales: dict[Arm, list[float]], about: str = "TPOT", pairs=stage_pairs) -> list[str]:
    plan = comparison.plan(list(scales), len(scales[PEER]))
    found = findings.ratio_sentences(plan, ratios(plan, runs_of(scales), pairs(plan), TIMES))
    return next(one.lines for one in found if one.about == about)


def test_a_difference_is_told_with_its_interval():
    scales = {RPYC: [1.2, 1.21, 1.22, 1.2, 1.21, 1.22], PEER: [1.0] * 6}
    assert sentences(scales) == ["rpyc 1.21 times peer's [1.20, 1.22] at TP 2 DP 1."]


def test_an_interval_that_holds_1_is_no_difference():
    scales = {BROADCAST: [0.99, 1.01, 1.02, 0.98, 1.0, 1.01], PEER: [1.0] * 6}
    assert sentences(scales) == ["broadcast and peer: no difference seen at TP 2 DP 1."]


def test_an_interval_wider_than_the_effect_is_unstable():
    scales = {BROADCAST: [1.05, 1.3, 1.1, 1.25, 1.06, 1.12], PEER: [1.0] * 6}
    (line,) = sentences(scales)
    assert line == "broadcast 1.11 times peer's [1.05, 1.30] (unstable) at TP 2 DP 1."


def test_what_is_sure_comes_before_what_is_unstable_and_that_before_what_was_not_seen():
    scales = {}
    for tp_size, above in ((1, [1.0] * 6), (2, [1.05, 1.3, 1.1, 1.25, 1.06, 1.12]), (4, [2.0] * 6)):
        scales |= {arm("rpyc", tp_size=tp_size): above, arm("peer", tp_size=tp_size): [1.0] * 6}
    scales[PEER] = scales.pop(arm("peer", tp_size=2))
    (line,) = sentences(scales)
    places = [line.index(words) for words in ("at TP 4", "(unstable) at TP 2", "no difference seen at TP 1")]
    assert places == sorted(places)


def test_scheduling_is_said_where_a_comparison_has_several():
    scales = {msgspec.structs.replace(RPYC, scheduling="rank0"): [2.0] * 6, PEER: [1.0] * 6}
    assert sentences(scales) == ["rpyc rank0 2.00 times peer replicated's [2.00, 2.00] at TP 2 DP 1."]


def test_one_pair_says_that_nothing_follows():
    assert sentences({RPYC: [1.5], PEER: [1.0]}) == [
        "rpyc 1.50 times peer's in the only pair (so nothing follows) at TP 2 DP 1."
    ]


def test_shapes_that_say_the_same_share_a_sentence_and_what_was_seen_comes_first():
    others = {arm("rpyc", tp_size=4): [1.0] * 6, arm("peer", tp_size=4): [1.0] * 6}
    more = {arm("rpyc", dp_size=2): [1.0] * 6, arm("peer", dp_size=2): [1.0] * 6}
    scales = others | more | {RPYC: [2.0] * 6, PEER: [1.0] * 6}
    assert sentences(scales) == [
        "rpyc 2.00 times peer's [2.00, 2.00] at TP 2 DP 1; no difference seen at TP 4 DP 1 and TP 2 DP 2."
    ]


def test_era_is_set_against_level_and_the_constants_are_said():
    scales = {PEER: [1.0] * 6, arm("peer", "era"): [2.0] * 6, BROADCAST: [3.0] * 6}
    assert sentences(scales, pairs=era_pairs) == [
        "peer with era constants 2.00 times its level's [2.00, 2.00] at TP 2 DP 1."
    ]
    assert sentences(scales) == ["level: broadcast 3.00 times peer's [3.00, 3.00] at TP 2 DP 1."]


def test_counts_stand_side_by_side_and_those_of_0_are_left_out():
    scales = {BROADCAST: [1.0], PEER: [1.0]}
    found = findings.count_sentences(comparison.plan(list(scales), 1), runs_of(scales))
    assert {one.about: one.lines for one in found}["processes"] == ["broadcast / peer: 3 / 3 at TP 2 DP 1."]
    assert "messages a turn" not in {one.about for one in found}


def test_a_turn_may_be_dearer_where_a_token_is_cheaper():
    plan = comparison.plan([RPYC, PEER], 6)
    runs = runs_of({PEER: [1.0] * 6})
    for repeat in range(6):  # three times as long, and an eighth as many
        one = comparison.run(RPYC, repeat, 3.0)
        turns = [
            msgspec.structs.replace(
                rank, working=rank.working // 8, parts={name: (w / 8, c / 8) for name, (w, c) in rank.parts.items()}
            )
            for rank in one.turns
        ]
        runs.append(msgspec.structs.replace(one, turns=turns))
    (line,) = findings.turn_against_token(plan, ratios(plan, runs, stage_pairs(plan), TIMES))
    assert "3.00 [3.00, 3.00] times peer's per turn" in line
    assert line.endswith("dearer by the turn, cheaper by the token.")


# ---------------------------------------------------------------------- surprises


def surprising(runs: list[Run], arms: list[Arm]) -> dict[str, list[str]]:
    plan = comparison.plan(arms, 6)
    found = surprises(
        plan, runs, ratios(plan, runs, stage_pairs(plan), TIMES), ratios(plan, runs, era_pairs(plan), TIMES)
    )
    return {surprise.rule: surprise.lines for surprise in found}


def test_nothing_is_flagged_where_nothing_is_odd():
    assert surprising(runs_of({BROADCAST: [1.0] * 6, PEER: [1.0] * 6}), [BROADCAST, PEER]) == {}


def test_broadcast_and_peer_must_not_differ_at_tp_2():
    ((rule, lines),) = surprising(runs_of({BROADCAST: [1.2] * 6, PEER: [1.0] * 6}), [BROADCAST, PEER]).items()
    assert "suspicious until it is explained" in rule
    assert "TPOT of broadcast level replicated TP 2 DP 1: 1.20 times peer's [1.20, 1.20]." in lines


def test_an_unstable_difference_of_broadcast_and_peer_is_flagged_too():
    scales = {BROADCAST: [1.05, 1.3, 1.1, 1.25, 1.06, 1.12], PEER: [1.0] * 6}
    (lines,) = surprising(runs_of(scales), [BROADCAST, PEER]).values()
    assert any(line.startswith("TPOT") and line.endswith("(unstable).") for line in lines)


def test_they_may_differ_at_tp_1():
    scales = {arm("broadcast", tp_size=1): [1.2] * 6, arm("peer", tp_size=1): [1.0] * 6}
    assert surprising(runs_of(scales), list(scales)) == {}


def test_era_must_not_beat_level():
    scales = {PEER: [1.0] * 6, arm("peer", "era"): [0.5] * 6}
    ((rule, lines),) = surprising(runs_of(scales), list(scales)).items()
    assert "should not beat" in rule
    assert "output throughput of peer era replicated TP 2 DP 1: 2.00 times its level's [2.00, 2.00]." in lines


def _with_part(part: str, share: float) -> Run:
    one = comparison.run(PEER, 0)
    whole = sum(wall for wall, _ in one.turns[0].parts.values())
    turns = [msgspec.structs.replace(rank, parts=rank.parts | {part: (share * whole, 0.0)}) for rank in one.turns]
    return msgspec.structs.replace(one, turns=turns)


def test_a_turn_must_not_be_other():
    ((rule, lines),) = surprising([_with_part("other", 0.1)], [PEER]).items()
    assert "(other) should stay below 5%" in rule
    assert lines[0].startswith("peer level replicated TP 2 DP 1: other is 9.")


def test_tokens_that_differ_and_a_run_that_stands_out_are_flagged():
    runs = [comparison.run(PEER, 0), comparison.run(PEER, 1, 2.0, tokens="others")]
    assert list(surprising(runs, [PEER]).values()) == [
        ["NOT the same, 2 different outputs."],
        ["peer level replicated TP 2 DP 1: 1.15 to 2.3 ms in 2 runs."],
    ]


# ---------------------------------------------------------------------- in short


def in_short(scales: dict[Arm, list[float]], null: dict[str, Any] | None = None) -> dict[str, list[str]]:
    plan, runs = comparison.plan(list(scales), 6), runs_of(scales)
    over_reference, over_level = (ratios(plan, runs, of(plan), TIMES) for of in (stage_pairs, era_pairs))
    return {one.about: one.lines for one in findings.in_short(plan, runs, over_reference, over_level, null)}


def test_in_short_there_are_five_lines():
    scales = {PEER: [1.0] * 6, RPYC: [1.5] * 6, arm("peer", "era"): [3.0] * 6, arm("rpyc", "era"): [1.5] * 6}
    said = in_short(scales, a_null())
    assert list(said) == ["Output tokens", "Processes", "Level constants, over peer", "Era over level constants",
                          "A/A test"]  # fmt: skip
    assert said["Output tokens"] == ["Identical in every run."]
    assert said["Processes"] == ["level and era: peer / rpyc: 3 / 3 at TP 2 DP 1."]
    (line,) = said["Level constants, over peer"]
    assert line.startswith("Of 6 95% intervals 6 differ from 1; the largest: ")
    assert line.endswith("of rpyc, 1.50 times peer's [1.50, 1.50] at TP 2 DP 1.")
    assert said["Era over level constants"][0].startswith("Of 12 95% intervals 6 differ from 1; the largest: ")
    assert said["A/A test"][0].startswith("Holds: of 1 interval between arms that are alike (every stage with level")


def test_in_short_few_pairs_are_not_called_95():
    (line,) = in_short({PEER: [1.0] * 3, RPYC: [1.5] * 3})["Level constants, over peer"]
    assert line.startswith("Of 6 ranges (from 3 pairs on: too few for 95%) 6 differ from 1")


def test_in_short_one_pair_says_nothing():
    said = in_short({PEER: [1.0], RPYC: [1.5]})
    assert said["Level constants, over peer"] == ["One pair of runs each, so nothing follows."]
    assert said["A/A test"] == ["There is none beside these results."]
    other = in_short({PEER: [1.0], RPYC: [1.5]}, a_null(device="cpu"))
    assert other["A/A test"] == ["The one beside these results is of another device or CPU."]


@pytest.mark.parametrize(("pairs", "by_chance"), [(6, "0.2"), (2, "3"), (9, "0.2")])
def test_how_many_would_seem_to_differ_by_chance_is_told(pairs, by_chance):
    plan = comparison.plan([RPYC, PEER], pairs)
    found = ratios(plan, runs_of({RPYC: [1.0] * pairs, PEER: [1.0] * pairs}), stage_pairs(plan), TIMES)
    assert findings.multiplicity(found) == (
        f"6 intervals are judged here; where nothing differs about {by_chance} of them would still seem to."
    )


# ---------------------------------------------------------------------- cautions


def a_null(**changed: object) -> dict[str, Any]:
    return {
        "bench": "null", "device": "sim", "verdict": "holds", "share_that_holds_1": 0.95, "median_half_width": 0.02,
        "intervals": [{"arm": "peer level replicated TP 2 DP 1", "metric": "TPOT", "judged": True}],
        "most_half_width": 0.03, "shapes": ["TP 1 DP 1", "TP 2 DP 1"], "repeats": 9, "rounds": 6,
        "environment": {"cpu_model": comparison.ENVIRONMENT["cpu_model"]},
    } | changed  # fmt: skip


def said(scales: dict[Arm, list[float]], null: dict[str, Any] | None, **changed: object) -> list[str]:
    plan = comparison.plan(list(scales), 6)
    runs = [msgspec.structs.replace(run, **changed) for run in runs_of(scales)]
    plan.environment["affinity"] = list(range(8))
    return cautions(plan, runs, ratios(plan, runs, stage_pairs(plan), TIMES), null)


def test_few_runs_missing_arms_and_a_missing_null_test_are_told():
    plan = comparison.plan([BROADCAST, RPYC], 3)
    text = " ".join(cautions(plan, runs_of({BROADCAST: [1.0, 1.0]}), [], None))
    assert "2 of 6 runs are there" in text
    assert "Without any run: rpyc level replicated TP 2 DP 1." in text
    assert "50% of the cases" in text
    assert "no arm of peer" in text
    assert "No A/A test" in text
    assert "Up to 2 ranks, main and a detokenizer share 2 cores" in text  # of 8, two may be used


def test_a_whole_comparison_with_its_null_test_needs_no_caution():
    assert said({BROADCAST: [1.0] * 6, PEER: [1.0] * 6}, a_null()) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": "cpu"}, "not of this device and CPU, but of cpu on A <fast>"),
        ({"environment": {"cpu_model": "another"}}, "not of this device and CPU, but of sim on another"),
        ({"environment": {}}, "not of this device and CPU"),
        ({"verdict": "fails", "share_that_holds_1": 0.7}, "(fails): of 1 interval between arms that are alike"),
        ({"verdict": "undecided"}, "did not come out as it should (undecided)"),
        ({"verdict": "fails"}, "constants at TP 1 DP 1 and TP 2 DP 1, 9 repeats of 6 rounds)"),
    ],
)
def test_an_a_a_test_of_another_machine_or_that_does_not_hold_is_told(changed, words):
    (line,) = said({BROADCAST: [1.0] * 6, PEER: [1.0] * 6}, a_null(**changed))
    assert words in line


def test_a_ratio_of_different_schedulings_is_told():
    (line,) = said({msgspec.structs.replace(RPYC, scheduling="rank0"): [1.0] * 6, PEER: [1.0] * 6}, a_null())
    assert "rpyc level rank0 TP 2 DP 1 over peer level replicated TP 2 DP 1." in line


def test_a_busy_machine_is_told():
    scales = {BROADCAST: [1.0] * 6, PEER: [1.0] * 6}
    (line,) = said(scales, a_null(), load_average=(4.5, 1.0, 1.0))
    assert "Before 12 of 12 runs the load average was above half the cores (up to 4.5 on 8)" in line
    assert said(scales, a_null(), load_average=(3.9, 9.0, 9.0)) == []


def test_a_pause_in_the_measuring_is_told():
    runs = [
        msgspec.structs.replace(run, began=f"2024-01-01T00:{minute:02}:00+00:00")
        for run, minute in zip(runs_of({PEER: [1.0] * 4}), (0, 1, 9, 10), strict=True)
    ]
    text = " ".join(cautions(comparison.plan([PEER], 4), runs, [], None))
    assert "The measuring was interrupted 1 time, for up to " in text
    assert "interrupted" not in " ".join(cautions(comparison.plan([PEER], 4), runs[:2], [], None))
