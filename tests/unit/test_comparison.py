"""The arithmetic of a comparison, on runs made up here; real ones are in tests/system/test_compare.py."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolution.compare_command import remaining
from experiments.bench.null import check_resumable, judged
from experiments.compare.measure import joined, thinned
from experiments.compare.metrics import (
    COUNTS,
    TIMES,
    control_plane_us_per_token,
    cpu_us,
    dispatcher_us,
    distribute_us,
)
from experiments.compare.records import (
    MOST_SAMPLES,
    RUNS,
    Arm,
    Distribute,
    Plan,
    Process,
    Run,
    Thread,
    Turns,
    Workload,
    append_run,
    drop_torn_line,
    read_runs,
    write_plan,
)
from report.comparison import era_pairs, heading, number, ratio, stage_pairs, values

TPOT = next(metric for metric in TIMES if metric.name == "TPOT")
PEER, RPYC = Arm("peer", "level", "replicated", 2, 1), Arm("rpyc", "level", "rank0", 2, 1)


def turns(process: str, rank: int | None, **medians: float) -> Turns:
    return Turns(process, "loop", 0 if rank is not None else None, rank, 10, 2, {}, {}, medians, {"messages": 20})


def a_run(arm: Arm, repeat: int, tpot_us: int, **changes: object) -> Run:
    process = Process("main", "tokenizer, Engine", 1, 0, 3000, [Thread(1, "python", 3000, 7, 3)], {"unix": 1, "tcp": 0})
    leader = turns("evo-peer TP0", 0, turn=900, forward=600, control=300)
    run = Run(
        arm, repeat, 0, "2024-12-01T00:00:00+00:00", (0.0, 0.0, 0.0), 1.0, 2.0, 100, "abc", [5000], [tpot_us], [9000],
        [1000], [1000], {}, [process], [leader], [], [],
    )  # fmt: skip
    return msgspec.structs.replace(run, **changes)


def a_plan(*arms: Arm, repeats: int = 2) -> Plan:
    return Plan(list(arms), repeats, Workload(1, 1, 1, 1), {"device": "sim"}, {"git_commit": None})


def test_a_repeat_has_an_order_of_its_own_and_skips_what_is_done() -> None:
    arms = [
        Arm(stage, "level", "replicated", tp_size, 1) for tp_size in (1, 2) for stage in ("rpyc", "broadcast", "peer")
    ]
    plan = a_plan(*arms, repeats=20)
    order = remaining(plan, [])
    assert order == remaining(plan, [])
    orders = [[arm for repeat, arm in order if repeat == number] for number in range(20)]
    assert all(sorted(each, key=arms.index) == arms for each in orders)
    assert all(len({arm.shape for arm in each[:3]}) == len({arm.shape for arm in each[3:]}) == 1 for each in orders)
    followers: dict[Arm, set[Arm]] = {arm: set() for arm in arms}
    for each in orders:
        for before, after in itertools.pairwise(each):
            followers[before].add(after)
    assert all(len(after) > 1 for after in followers.values())
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
    assert heading(plan, PEER) == "peer\nlevel\nreplicated"
    assert heading(a_plan(PEER, wider), PEER) == "peer"


def test_what_travels_is_counted_from_where_the_slowest_rank_is_ready() -> None:
    two = [Distribute(0, 10, 500, 100, 20), Distribute(1, 30, 0, 200, 40)]
    assert distribute_us(a_run(PEER, 0, 1, distribute=two)) == 200
    assert distribute_us(a_run(PEER, 0, 1)) is None  # one rank


def test_the_control_plane_of_a_token_is_all_that_is_not_forward() -> None:
    parts = {"idle": (500.0, 0.0), "forward": (600.0, 0.0), "transport": (300.0, 0.0), "pacing_sleep": (100.0, 0.0)}
    leader = turns("evo-peer TP0", 0, turn=1000, forward=600, control=400)
    run = a_run(PEER, 0, 1, turns=[msgspec.structs.replace(leader, parts=parts)])
    assert control_plane_us_per_token(run) == 4.0  # 100 tokens


def test_the_dispatcher_is_only_where_there_are_replicas() -> None:
    process = Process("evo-dp-controller", "dispatcher", 2, 1, 5000, [], {"unix": 1, "tcp": 0})
    assert dispatcher_us(a_run(PEER, 0, 1, processes=[process])) is None
    replicas = msgspec.structs.replace(PEER, dp_size=2)
    assert dispatcher_us(a_run(replicas, 0, 1, processes=[process])) == 50_000  # per 1,000 tokens


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


def test_parts_too_short_to_be_drawn_are_joined() -> None:
    spin = [(("recv_requests", "idle")[n % 2], n + 0.0, n + 1.0) for n in range(10, 21)]
    parts = [("forward", 0.0, 10.0), *spin, ("forward", 21.0, 40.0), ("other", 40.0, 40.5)]
    assert joined(parts, 2.0) == [
        ("forward", 0.0, 10.0), ("recv_requests", 10.0, 21.0), ("forward", 21.0, 40.0), ("other", 40.0, 40.5),
    ]  # fmt: skip
    assert joined(parts, 0.1) == parts
    assert joined([], 1.0) == []


def null_runs(drift: float, spread: int) -> tuple[Plan, list[Run]]:
    """13 arms, each twice; `drift`: of every B; `spread` of the samples around 1,000, in turn above and below."""
    arms = [Arm("peer", "level", "replicated", tp_size, 1, copy) for tp_size in range(1, 14) for copy in "AB"]
    runs = []
    for arm in arms:
        for repeat in range(9):
            off = spread * (-1) ** (repeat + (arm.copy == "B"))
            time = round((1000 + off) * (drift if arm.copy == "B" else 1))
            leader = turns("evo-peer TP0", 0, turn=2 * time, forward=time, control=time)
            process = Process("main", "", 1, 0, time, [Thread(1, "python", time, time, 0)], {})
            runs.append(a_run(arm, repeat, time, ttft_us=[time], turns=[leader], processes=[process]))
    return a_plan(*arms, repeats=9), runs


@pytest.mark.parametrize(
    ("drift", "spread", "share", "verdict"),
    [(1.0, 5, 1.0, "fails"), (1.5, 5, 0.0, "fails"), (1.0, 100, 1.0, "fails")],
)
def test_the_null_test_wants_a_few_false_alarms_and_narrow_intervals(
    drift: float, spread: int, share: float, verdict: str
) -> None:
    result = judged(*null_runs(drift, spread))
    assert result["intervals_judged"] == 13 * 5
    assert result["share_that_holds_1"] == share
    assert result["verdict"] == verdict
    assert (result["median_half_width"] <= 0.03) == (spread < 50)


def test_the_null_test_holds_where_it_should() -> None:
    """One arm of the 13 drifts: 92% of the intervals hold 1."""
    plan, runs = null_runs(1.0, 5)
    drifting = [run for run in null_runs(1.5, 5)[1] if run.arm.tp_size == 1]
    result = judged(plan, [run for run in runs if run.arm.tp_size != 1] + drifting)
    assert result["share_that_holds_1"] == pytest.approx(12 / 13)
    assert result["verdict"] == "holds"


def test_the_null_test_goes_on_with_nothing_but_its_own_plan(tmp_path: Path) -> None:
    plan, _ = null_runs(1.0, 5)
    write_plan(tmp_path, plan)
    check_resumable(tmp_path, msgspec.structs.replace(plan, repeats=12))
    workload = msgspec.structs.replace(plan.workload, rounds=plan.workload.rounds + 1)
    for changed in ({"workload": workload}, {"settings": {"device": "cpu"}}, {"arms": plan.arms[:2]}):
        (what,) = changed
        with pytest.raises(ValueError, match=f"was begun with other {what}"):
            check_resumable(tmp_path, msgspec.structs.replace(plan, **changed))


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.01234, "0.0123"), (9.876, "9.88"), (12345.6, "12,346")])
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert number(value) == text
