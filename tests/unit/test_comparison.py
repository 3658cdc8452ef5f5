"""The arithmetic of a comparison, on runs made up here; real ones are in tests/system/test_compare.py."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolution.compare_command import remaining
from experiments.bench.null import judged
from experiments.compare.measure import thinned
from experiments.compare.metrics import COUNTS, TIMES, cpu_us, distribute_us
from experiments.compare.records import (
    MOST_SAMPLES,
    RUNS,
    Arm,
    Plan,
    Process,
    Run,
    Thread,
    Turns,
    Workload,
    append_run,
    drop_torn_line,
    read_runs,
)
from report.comparison import era_pairs, heading, number, ratio, stage_pairs, values

TPOT = next(metric for metric in TIMES if metric.name == "TPOT")
PEER, RPYC = Arm("peer", "level", "replicated", 2, 1), Arm("rpyc", "level", "rank0", 2, 1)


def turns(process: str, rank: int | None, **medians: float) -> Turns:
    return Turns(process, "loop", 0 if rank is not None else None, rank, 10, 2, {}, {}, medians, {"messages": 20})


def a_run(arm: Arm, repeat: int, tpot_us: int, **changes: object) -> Run:
    process = Process("main", "tokenizer, Engine", 1, 0, 3000, [Thread("python", 3000, 7, 3)], {"unix": 1, "tcp": 0})
    leader = turns("evo-peer TP0", 0, turn=900, forward=600, control=300, distribute=100)
    run = Run(
        arm, repeat, 0, "2024-12-01T00:00:00+00:00", (0.0, 0.0, 0.0), 1.0, 2.0, 100, "abc", [5000], [tpot_us], [9000],
        [1000], [1000], {}, [process], [leader], [],
    )  # fmt: skip
    return msgspec.structs.replace(run, **changes)


def a_plan(*arms: Arm, repeats: int = 2) -> Plan:
    return Plan(list(arms), repeats, Workload(1, 1, 1, 1), {"device": "sim"}, {"git_commit": None})


def test_each_repeat_begins_one_arm_further_and_skips_what_is_done() -> None:
    arms = [msgspec.structs.replace(PEER, tp_size=tp) for tp in (1, 2, 4)]
    plan = a_plan(*arms, repeats=4)
    order = remaining(plan, [])
    assert [arm for repeat, arm in order if repeat == 1] == [arms[1], arms[2], arms[0]]
    assert [arm for repeat, arm in order if repeat == 3] == arms
    done = [a_run(arms[2], 0, 1), a_run(arms[0], 3, 1)]
    assert remaining(plan, done) == [item for item in order if item not in [(0, arms[2]), (3, arms[0])]]


def test_ratios_pair_runs_of_the_same_repeat() -> None:
    runs = [a_run(PEER, 0, 100), a_run(RPYC, 1, 600), a_run(RPYC, 0, 125), a_run(PEER, 1, 300), a_run(PEER, 2, 7)]
    found = ratio(TPOT, RPYC, PEER, runs)
    assert found.ratio["pairs"] == [1.25, 2.0]
    assert found.ratio["median"] == 1.625
    assert ratio(TPOT, RPYC, PEER, runs[:1]) is None
    assert ratio(TPOT, RPYC, PEER, [a_run(RPYC, 0, 150), a_run(PEER, 0, 0)]) is None


def test_a_ratio_that_holds_1_says_so() -> None:
    same = ratio(TPOT, RPYC, PEER, [a_run(arm, n, 100 + n % 2) for n in range(4) for arm in (PEER, RPYC)])
    assert same.mark == "=" and same.remark == "no difference seen"
    twice = [a_run(PEER, n, 100) for n in range(4)] + [a_run(RPYC, n, 200) for n in range(4)]
    assert ratio(TPOT, RPYC, PEER, twice).mark == " "


def test_arms_are_laid_beside_those_that_differ_in_one_thing() -> None:
    era = msgspec.structs.replace(RPYC, constants="era", scheduling="replicated")
    wider = msgspec.structs.replace(PEER, tp_size=4)
    plan = a_plan(PEER, RPYC, era, wider)
    assert stage_pairs(plan) == [(RPYC, PEER)]  # each has one scheduling, so those count as alike
    assert era_pairs(plan) == [(era, RPYC)]
    both = msgspec.structs.replace(RPYC, scheduling="replicated")
    assert stage_pairs(a_plan(PEER, RPYC, both)) == [(both, PEER)]
    assert heading(a_plan(PEER, RPYC, both), RPYC) == "rpyc\nrank0"
    assert heading(plan, PEER) == "peer\nlevel"


def test_what_the_calls_of_a_router_took_is_without_what_rank_0_did_in_them() -> None:
    rank = turns("evo-rpyc TP0", 0, turn=1500, forward=600, control=900, distribute=50, execute=700)
    router = turns("evo-router", None, turn=1600, forward=0, control=1600, distribute=1400, execute=200)
    assert distribute_us(a_run(RPYC, 0, 1, turns=[rank, router])) == 700
    assert distribute_us(a_run(PEER, 0, 1)) == 100


def test_what_only_the_simulation_takes_is_not_in_the_cpu_time() -> None:
    stats = {"sim_cpu_seconds": 0.0005, "sim_others_cpu_seconds": 0.001}
    assert cpu_us(a_run(PEER, 0, 1, stats=stats)) == pytest.approx(1500)


def test_counts_are_per_turn_and_per_token() -> None:
    found = {value.metric.name: value.median for value in values(a_plan(PEER), [a_run(PEER, 0, 1)], COUNTS)}
    assert found["messages a turn"] == 2
    assert found["messages a 1,000 tokens"] == 200
    assert found["context switches a turn"] == 1
    assert found["turns a 1,000 tokens"] == 100


@given(st.lists(st.integers(0, 10**6), max_size=3 * MOST_SAMPLES))
def test_thinned_samples_keep_the_ends_and_the_middle(samples: list[int]) -> None:
    few = thinned(samples)
    assert few == sorted(few) and len(few) <= MOST_SAMPLES
    if samples:
        ordered = sorted(samples)
        assert (few[0], few[-1]) == (ordered[0], ordered[-1])
        middle = ordered.index(few[len(few) // 2])
        assert abs(middle - len(ordered) / 2) <= 1 or ordered[middle] in ordered[len(ordered) // 2 - 1 :][:2]


def test_a_torn_last_line_does_not_count(tmp_path: Path) -> None:
    whole = a_run(PEER, 0, 1)
    append_run(tmp_path, whole)
    with (tmp_path / RUNS).open("ab") as file:
        file.write(b'{"arm"')
    assert read_runs(tmp_path) == [whole]
    drop_torn_line(tmp_path)
    append_run(tmp_path, whole)
    assert read_runs(tmp_path) == [whole, whole]
    with (tmp_path / RUNS).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(ValueError, match="line 3"):
        read_runs(tmp_path)


@pytest.mark.parametrize(("drift", "holds_1"), [(1.0, True), (1.5, False)])
def test_the_null_test_sees_a_difference_where_there_is_one(drift: float, holds_1: bool) -> None:
    a, b = (msgspec.structs.replace(PEER, copy=copy) for copy in "AB")
    runs = [a_run(a, n, 100 + n % 3) for n in range(7)]
    runs += [a_run(b, n, round((100 + (n + 1) % 3) * drift)) for n in range(7)]
    result = judged(a_plan(a, b, repeats=7), runs)
    [tpot] = [found for found in result["intervals"] if found["metric"] == "TPOT"]
    assert (tpot["low"] <= 1 <= tpot["high"]) is holds_1
    assert not result["holds"]  # far fewer than 60 intervals


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.01234, "0.0123"), (9.876, "9.88"), (12345.6, "12,346")])
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert number(value) == text
