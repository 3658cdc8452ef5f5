"""The sentences of a report: what the intervals allow to say, and what is flagged."""

from __future__ import annotations

import msgspec

from experiments.compare.metrics import TIMES
from experiments.compare.records import Arm, Run
from report import findings
from report.comparison import era_pairs, ratios, stage_pairs
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
    assert line.startswith("broadcast unstable, 1.11 times peer's [1.0")
    assert line.endswith("at TP 2 DP 1.")


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
        turns = [msgspec.structs.replace(rank, working=rank.working // 8) for rank in one.turns]
        runs.append(msgspec.structs.replace(one, turns=turns))
    (line,) = findings.turn_against_token(plan, ratios(plan, runs, stage_pairs(plan), TIMES))
    assert "3.00 [3.00, 3.00] times peer's per turn" in line
    assert line.endswith("dearer by the turn, cheaper by the token.")


# ---------------------------------------------------------------------- surprises


def surprising(runs: list[Run], arms: list[Arm]) -> dict[str, list[str]]:
    plan = comparison.plan(arms, 6)
    found = findings.surprises(
        plan, runs, ratios(plan, runs, stage_pairs(plan), TIMES), ratios(plan, runs, era_pairs(plan), TIMES)
    )
    return {surprise.rule: surprise.lines for surprise in found}


def test_nothing_is_flagged_where_nothing_is_odd():
    assert surprising(runs_of({BROADCAST: [1.0] * 6, PEER: [1.0] * 6}), [BROADCAST, PEER]) == {}


def test_broadcast_and_peer_must_not_differ_at_tp_2():
    ((rule, lines),) = surprising(runs_of({BROADCAST: [1.2] * 6, PEER: [1.0] * 6}), [BROADCAST, PEER]).items()
    assert "suspicious until it is explained" in rule
    assert "TPOT of broadcast level replicated TP 2 DP 1: 1.20 times peer's [1.20, 1.20]." in lines


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


# ---------------------------------------------------------------------- cautions


def test_few_runs_missing_arms_and_a_missing_null_test_are_told():
    plan = comparison.plan([BROADCAST, RPYC], 3)
    text = " ".join(findings.cautions(plan, runs_of({BROADCAST: [1.0, 1.0]}), null_test=False))
    assert "2 of 6 runs are there" in text
    assert "Without any run: rpyc level replicated TP 2 DP 1." in text
    assert "50% of the cases" in text
    assert "no arm of peer" in text
    assert "No A/A test" in text


def test_a_whole_comparison_with_its_null_test_needs_no_caution():
    plan = comparison.plan([BROADCAST, PEER], 6)
    assert findings.cautions(plan, runs_of({BROADCAST: [1.0] * 6, PEER: [1.0] * 6}), null_test=True) == []
