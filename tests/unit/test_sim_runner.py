"""SimRunner: its tokens, its waiting, and the accounts of it."""

from __future__ import annotations

import sys
import threading
import time

import msgspec
import numpy as np
import pytest

from common.batch import BatchPlan, PrefillSeq, RowExtras, RowSampling
from common.messages import pack_ids
from common.parallel.collectives import ShmCollectives, SingleRank
from common.parallel.shared_memory import exchange_buffer
from common.sim.profiles import PROFILES
from common.sim.runner import SimRunner

ROWS = 8
TOKEN_IDS = list(range(10, 250))
FORWARD = 0.05
# All else that the profile predicts is below a millisecond.
PROFILE = msgspec.structs.replace(PROFILES["h100-qwen3-0.6b"], fixed_seconds=FORWARD)
FAST = PROFILES["h100-qwen3-0.6b"]
# How late a busy machine may wake a sleeper.
SLACK = 0.04


def make(tp=None, profile=FAST, **options) -> SimRunner:
    return SimRunner(profile, tp or SingleRank(), TOKEN_IDS, max_running_requests=ROWS, **options)


def prefill(*rows: tuple[int, int, int], turn: int = 1) -> BatchPlan:
    """(row, tokens, seed) each."""
    seqs = [
        PrefillSeq(row, 0, pack_ids(range(n)), pack_ids(range(n)), b"", RowSampling(1.0, 1.0, -1, seed), True)
        for row, n, seed in rows
    ]
    return BatchPlan(turn, seqs)


def decode(*rows: int, turn: int = 2) -> BatchPlan:
    return BatchPlan(turn, [], pack_ids(rows), pack_ids(rows))


def outputs(runner: SimRunner, requests: list[tuple[int, int, int]], steps: int) -> np.ndarray:
    """int32 [steps + 1, requests]"""
    rows = [row for row, _, _ in requests]
    return np.stack(
        [runner.execute(prefill(*requests)).ids, *(runner.execute(decode(*rows)).ids for _ in range(steps))]
    )


def test_tokens_depend_on_seed_and_position_alone():
    requests = [(0, 5, 42), (3, 9, -7), (1, 5, 2**63 - 1)]
    together = outputs(make(), requests, 20)
    assert together.dtype == np.int32
    assert np.isin(together, TOKEN_IDS).all()
    for index, (_, n, seed) in enumerate(requests):
        alone = outputs(make(), [(6, n, seed)], 20)
        assert alone[:, 0].tolist() == together[:, index].tolist()
    # As after a retraction: what was produced is prefilled with the prompt.
    assert make().execute(prefill((0, 5 + 7, 42))).ids[0] == together[7, 0]


def test_tokens_are_spread_over_all_ids():
    runner = make()
    runner.execute(prefill(*((row, 1, row) for row in range(ROWS))))
    counts = np.zeros(256, dtype=int)
    for _ in range(400):
        np.add.at(counts, runner.execute(decode(*range(ROWS))).ids, 1)
    assert counts[TOKEN_IDS].sum() == 400 * ROWS
    assert counts[TOKEN_IDS].min() > 0
    assert counts.max() < 4 * 400 * ROWS / len(TOKEN_IDS)


def test_chunks_join_and_the_last_one_samples():
    runner = make()
    first = prefill((2, 30, 5))
    first.prefill[0].sample = False
    assert runner.execute(first).ids.tolist() == []
    rest = PrefillSeq(2, 30, pack_ids(range(12)), pack_ids(range(12)), b"", None, True)
    assert runner.execute(BatchPlan(2, [rest])).ids.tolist() == make().execute(prefill((0, 42, 5))).ids.tolist()


def test_a_forward_takes_the_predicted_time_off_the_core():
    runner = make(profile=PROFILE)
    began, cpu = time.monotonic(), time.thread_time()
    runner.execute(prefill((0, 10, 1)))
    runner.execute(decode(0))
    elapsed, burned = time.monotonic() - began, time.thread_time() - cpu
    assert 2 * FORWARD <= elapsed < 2 * (FORWARD + SLACK)
    assert burned < 0.2 * elapsed


def test_counts_add_up():
    runner = make(profile=PROFILE)
    began = time.monotonic()
    runner.execute(prefill((0, 10, 1)))
    for _ in range(4):
        runner.execute(decode(0))
    elapsed = time.monotonic() - began
    counts = runner.counts()
    assert counts["sim_forwards"] == 5
    assert counts["sim_wait_seconds"] == 0
    parts = counts["sim_wait_seconds"] + counts["sim_predicted_seconds"] + counts["sim_overshoot_seconds"]
    assert elapsed - 0.005 < parts <= elapsed
    assert counts["sim_slept_seconds"] <= parts
    assert counts["sim_overshoot_seconds"] >= 0
    assert 0 < counts["sim_cpu_seconds"] < 0.05
    assert counts["sim_launch_cpu_seconds"] == counts["sim_others_cpu_seconds"] == 0


def test_launching_burns_the_core_before_the_forward():
    runner = make(profile=PROFILE, launch_us=30_000)
    began, cpu = time.monotonic(), time.thread_time()
    runner.execute(prefill((0, 10, 1)))
    elapsed, burned = time.monotonic() - began, time.thread_time() - cpu
    counts = runner.counts()
    assert burned >= 0.03
    assert 0.03 <= counts["sim_launch_cpu_seconds"] < 0.035
    assert counts["sim_cpu_seconds"] < 0.01
    assert elapsed >= 0.03 + FORWARD


def test_launching_leaves_the_interpreter_to_other_threads():
    """Nobody is made to give it up: another thread that wakes during the launch runs only if the launch lets it."""
    runner = make(launch_us=300_000)
    woke = []
    other = threading.Thread(target=lambda: (time.sleep(0.05), woke.append(time.monotonic())))
    before = sys.getswitchinterval()
    other.start()
    try:
        sys.setswitchinterval(60)
        runner.execute(prefill((0, 10, 1)))
        launched = time.monotonic()
    finally:
        sys.setswitchinterval(before)
    other.join()
    assert woke[0] < launched - 0.05


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_leave_together_after_the_slowest(size):
    """Each launches 30 ms after the one before it, as threads with a runner each."""
    buffer = exchange_buffer(size, 64)
    late = 0.03
    launched, left = [0.0] * size, [0.0] * size
    tokens: list = [None] * size
    runners = [make(ShmCollectives(buffer, rank, size, 64, yields=0), PROFILE) for rank in range(size)]

    def run(rank: int) -> None:
        time.sleep(rank * late)
        launched[rank] = time.monotonic()
        tokens[rank] = runners[rank].execute(prefill((0, 10, 1))).ids.tolist()
        left[rank] = time.monotonic()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(size):
        assert FORWARD <= left[rank] - max(launched) < FORWARD + SLACK
        waited = runners[rank].counts()["sim_wait_seconds"]
        assert waited == pytest.approx(max(launched) - launched[rank], abs=0.02)
    assert tokens == [make().execute(prefill((0, 10, 1))).ids.tolist()] * size


def test_each_rank_knows_what_the_others_burned():
    size = 2
    buffer = exchange_buffer(size, 64)
    runners = [make(ShmCollectives(buffer, rank, size, 64, yields=0)) for rank in range(size)]

    def run(runner: SimRunner) -> None:
        runner.execute(prefill((0, 10, 1)))
        for _ in range(20):
            runner.execute(decode(0))

    threads = [threading.Thread(target=run, args=(runner,)) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, other = (runner.counts() for runner in runners)
    assert 0 < one["sim_others_cpu_seconds"] <= other["sim_cpu_seconds"]
    assert 0 < other["sim_others_cpu_seconds"] <= one["sim_cpu_seconds"]
    assert one["sim_predicted_seconds"] == other["sim_predicted_seconds"]


def test_plans_that_do_not_fit_the_rows():
    runner = make()
    with pytest.raises(ValueError, match="rows 0..7"):
        runner.execute(prefill((8, 1, 1)))
    with pytest.raises(ValueError, match="must have been prefilled"):
        runner.execute(decode(0))
    runner.execute(prefill((0, 10, 1)))
    with pytest.raises(ValueError, match=r"rows \[-1\]"):
        runner.execute(decode(-1))
    later = PrefillSeq(0, 11, pack_ids([1]), pack_ids([1]), b"", None, True)
    with pytest.raises(ValueError, match="starts at token 11, and the row holds 10"):
        runner.execute(BatchPlan(2, [later]))


def test_a_row_that_needs_logits_is_refused():
    plan = prefill((0, 10, 1))
    plan.extras = [RowExtras(0, 0.0, 1.5, 0.0, 0.0, 0, b"", 10, b"", b"", False, 10, 0)]
    with pytest.raises(ValueError, match="no logits"):
        make().execute(plan)
