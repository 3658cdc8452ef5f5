"""Hidden tests of lab 5: other sizes, other seeds, other traffic."""

from __future__ import annotations

import numpy as np
import pytest

from common.messages import AbortRequest, FlushRequest, StatsRequest
from evolution import Engine
from experiments.labs.marks import cost, task

from . import adapters, harness
from .launch import Launch
from .test_lab import Forwards, decode, ids, prefill, same_tokens


@task("5a_map")
@pytest.mark.timeout(10)
@pytest.mark.parametrize("size", [1, 5, 64])
def test_maps_of_other_sizes(size):
    rng = np.random.default_rng(size)
    tokens = adapters.token_map(size)
    newest: list[tuple[int, int]] = []
    for turn in range(200):
        n = int(rng.integers(0, size + 1))
        names, values = tokens.reserve(n), rng.integers(0, 50000, n).astype(np.int32)
        assert names.dtype == np.int32
        tokens.store(names, values)
        newest = (newest + list(zip(names.tolist(), values.tolist(), strict=True)))[-size:]
        assert len({name for name, _ in newest}) == len(newest)
        known = rng.integers(0, 50000, 3).tolist()
        asked = ids(*known, *(name for name, _ in newest))
        assert tokens.resolve(asked).tolist() == known + [token for _, token in newest], turn
    cost(f"200 turns through a map of {size}")


@task("5b_names")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_plans_with_one_turn_in_flight(seed):
    """Rows of any turns against a plain account of what each sampled last."""
    rng = np.random.default_rng(seed)
    rows = 6
    tokens = adapters.token_map(2 * rows)
    names = adapters.input_names(rows, tokens)
    last: dict[int, int] = {}  # by row, the token that it sampled last
    flying: tuple[Launch, np.ndarray] | None = None
    for turn in range(1, 300):
        chosen = [int(row) for row in rng.permutation(rows)[: int(rng.integers(1, rows + 1))]]
        if turn == 1 or rng.random() < 0.5:
            plan = prefill(turn, *chosen, chunk_of=None if len(chosen) == rows else max(set(range(rows)) - set(chosen)))
        else:
            chosen = [row for row in chosen if row in last]
            if not chosen:
                continue
            plan = decode(turn, *chosen)
        launch = names.launch(plan)
        if flying:  # its forward has ended, so what this launch is fed can be resolved
            tokens.store(flying[0].names, flying[1])
        if not plan.prefill:
            assert tokens.resolve(launch.input_ids).tolist() == [last[row] for row in chosen], turn
        sampled = rng.integers(0, 1000, len(chosen)).astype(np.int32)
        if flying:
            names.commit(*flying)
        last.update(zip(chosen, sampled.tolist(), strict=True))
        flying = (launch, sampled)
    cost("300 turns of 6 rows, with a map of 12")


@task("5c_forward")
@pytest.mark.timeout(10)
def test_many_launches_each_fed_by_the_one_before():
    forwards, tokens = Forwards(), adapters.token_map(6)
    names = adapters.input_names(3, tokens)
    thread = adapters.forward_thread(forwards.execute, tokens)
    before = names.launch(prefill(1, 0, 1, 2))
    thread.launch(before)
    for turn in range(2, 60):
        launch = names.launch(decode(turn, 2, 0))
        thread.launch(launch)
        names.commit(before, thread.result().ids)
        before = launch
    last = thread.result().ids.tolist()
    thread.stop()
    cost(f"60 forwards, the last gave {last}")
    assert last == [68, 68]
    assert all(min(fed, default=0) >= 0 for _, fed in forwards.seen)


@task("5c_forward")
@pytest.mark.timeout(10)
def test_a_first_forward_that_raises():
    forwards, tokens = Forwards(), adapters.token_map(8)
    thread = adapters.forward_thread(forwards.execute, tokens)
    thread.launch(Launch(prefill(99, 0), ids(), tokens.reserve(1)))
    with pytest.raises(FloatingPointError):
        thread.result()
    thread.stop()


@task("5d_loop")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [11, 12])
def test_other_traffic(seed):
    normal = same_tokens(lambda: harness.mixed_traffic(seed, count=25, every=1 + seed % 2), max_running_requests=5)
    cost(f"{sum(map(len, normal.tokens.values()))} tokens, all equal")


@task("5d_loop")
@pytest.mark.timeout(60)
def test_other_pressure_without_a_radix_cache():
    pressure = {"max_total_tokens": 130, "schedule_conservativeness": 0.001, "disable_radix_cache": True}
    normal = same_tokens(lambda: harness.mixed_traffic(13, count=20, every=1, longest=50), **pressure)
    cost(f"{sum(map(len, normal.tokens.values()))} tokens in 130 slots, all equal")
    assert normal.stats["retractions"] > 0


@task("5d_loop")
@pytest.mark.timeout(60)
def test_an_idle_engine_between_two_bursts():
    def messages():
        first = [harness.make_request(f"a{i}", [i + 1], max_new_tokens=i) for i in range(6)]
        second = [harness.make_request(f"b{i}", [i + 1, 7], max_new_tokens=3) for i in range(6)]
        return {3: first, 200: second, 201: [StatsRequest(7)], 400: [FlushRequest(8)]}

    ahead, _, _ = harness.run_overlapped(adapters.overlap_loop, messages())
    normal = harness.run_normal(messages())
    cost(f"{len(ahead.tokens)} requests in two bursts, a flush at the end: {ahead.replies[8]}")
    assert (ahead.tokens, ahead.finish) == (normal.tokens, normal.finish)
    assert ahead.replies[8][0] is True and 7 in ahead.replies


@task("5d_loop")
@pytest.mark.timeout(60)
def test_an_abort_of_a_prompt_in_chunks_and_one_in_each_turn():
    def messages(control: bool):
        rng = np.random.default_rng(3)
        found = {1: [harness.make_request("long", rng.integers(1, 250, 90).tolist(), max_new_tokens=9)]}
        found[2] = [harness.make_request(f"r{i}", [i + 1, 4], max_new_tokens=30) for i in range(5)]
        if control:
            found[4] = [AbortRequest(1, "long")]
            for i in range(3):
                found[9 + i] = [AbortRequest(10 + i, f"r{i}")]
        return found

    settings = {"chunked_prefill_size": 8}
    ahead, _, _ = harness.run_overlapped(adapters.overlap_loop, messages(True), **settings)
    whole = harness.run_normal(messages(False), **settings)
    cost(f"after the aborts: { ({rid: len(tokens) for rid, tokens in ahead.tokens.items()}) } tokens")
    assert ahead.finish["long"][0] == "abort" and not ahead.tokens["long"]
    assert all(ahead.replies[id][0] for id in (1, 10, 11, 12))
    for i in range(5):
        got, all_of_it = ahead.tokens[f"r{i}"], whole.tokens[f"r{i}"]
        assert got == all_of_it[: len(got)]
        assert (len(got) == 30) == (i > 2)


@task("5e_overlap")
@pytest.mark.timeout(10)
def test_counting_other_logs():
    serial = [(kind, turn) for turn in range(1, 9) for kind in ("plan", "begin", "end")]
    assert adapters.overlapped(serial) == (0, 8)
    ahead = [("plan", 1), ("begin", 1)]
    for turn in range(1, 8):
        ahead += [("plan", turn + 1), ("end", turn), ("begin", turn + 1)]
    assert adapters.overlapped([*ahead, ("end", 8)]) == (7, 8)
    early = [("plan", 1), ("plan", 2), ("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]
    assert adapters.overlapped(early) == (1, 2), "planned before the forward began is planned before it ended"
    cost("0 of 8, 7 of 8, 1 of 2 forwards")


@task("5e_overlap")
@pytest.mark.timeout(60)
def test_newcomers_are_planned_ahead_too():
    messages = {
        turn: [harness.make_request(f"r{turn}", [turn, turn + 1], max_new_tokens=9)] for turn in range(1, 16, 2)
    }
    assert adapters.overlapped([]) == (0, 0)
    _, executor, _ = harness.run_overlapped(adapters.overlap_loop, messages, harness.Watched)
    hidden, forwards = adapters.overlapped(executor.events)
    cost(f"{hidden} of {forwards} forwards, prefills among them")
    assert hidden >= 0.9 * forwards > 15


@task("5f_engine")
@pytest.mark.timeout(120)
def test_an_abort_and_a_late_request_in_a_real_engine():
    with pytest.raises(AttributeError):
        adapters.event_loop(None, None)
    settings = {"max_total_tokens": 4000, "max_running_requests": 8, "context_length": 2040, "model_path": "tiny"}

    def requests(longest: int):
        lengths = {"r0": 60, "r1": longest, "r2": 90}
        return [
            harness.make_request(rid, [i + 1, 2, 3], max_new_tokens=n) for i, (rid, n) in enumerate(lengths.items())
        ]

    late = harness.make_request("late", [7, 7, 7], max_new_tokens=20)
    whole = harness.run_normal({1: [*requests(200), late]})
    with Engine(stage=f"{__package__}.stage:launch", **settings) as engine:
        streams = engine.submit(requests(1900))
        for stream in streams:
            next(stream.results())
        assert engine.abort(streams[1].rid)
        streams += engine.submit([harness.make_request("late", [7, 7, 7], max_new_tokens=20)])
        results = [stream.result() for stream in streams]
    got = [result["output_ids"] for result in results]
    cost(f"tokens {[len(one) for one in got]}, the second was aborted")
    assert [got[0], got[2], got[3]] == [whole.tokens["r0"], whole.tokens["r2"], whole.tokens["late"]]
    assert len(got[1]) < 1900 and got[1][:200] == whole.tokens["r1"][: len(got[1])]
    assert results[1]["meta_info"]["finish_reason"]["type"] == "abort"


@task("5g_too_far")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("lengths", [[7] * 6, [0, 0], [2, 11, 4, 1, 1]])
def test_other_predictions(lengths):
    predicted = {overlap: adapters.decode_rows_computed(lengths, overlap) for overlap in (False, True)}
    messages = {1: [harness.make_request(f"r{i}", [i + 1, 3], max_new_tokens=n) for i, n in enumerate(lengths)]}
    _, executor, too_far = harness.run_overlapped(adapters.overlap_loop, messages, harness.Counted)
    cost(f"{lengths}: {executor.decode_rows} rows")
    assert predicted == {True: executor.decode_rows, False: executor.decode_rows - sum(n > 0 for n in lengths)}
    assert sorted(too_far) == sorted(f"r{i}" for i, n in enumerate(lengths) if n)


@task("5g_too_far")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [21, 22])
def test_who_was_computed_too_far_with_retractions_and_aborts(seed):
    assert adapters.decode_rows_computed([4], True) == 4
    messages = harness.mixed_traffic(seed, count=24, every=1, longest=60, stops=False)
    messages.setdefault(12, []).append(AbortRequest(1, "r3"))
    pressure = {"max_total_tokens": 240, "chunked_prefill_size": 24, "schedule_conservativeness": 0.001}
    ahead, executor, too_far = harness.run_overlapped(adapters.overlap_loop, messages, harness.Counted, **pressure)
    truth = {rid for rid, count in executor.sampled.items() if count > len(ahead.tokens.get(rid, []))}
    cost(f"{len(truth)} of {len(ahead.finish)} requests, {ahead.stats['retractions']} retractions")
    assert ahead.stats["retractions"] > 0 and ahead.finish["r3"][0] == "abort"
    assert set(too_far) == truth and len(too_far) == len(truth)
