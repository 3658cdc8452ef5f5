"""Public tests of lab 5. Nothing here depends on how fast anything is: forwards are held until the loop has planned."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from common.batch import BatchPlan, PrefillSeq, Sampled
from common.messages import AbortRequest, FlushRequest, StatsRequest, pack_ids
from evolution import Engine
from experiments.labs.marks import cost, task

from . import adapters, harness
from .launch import Launch


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def prefill(turn: int, *rows: int, chunk_of: int | None = None) -> BatchPlan:
    """Of these rows, each of which samples; chunk_of: a row whose prompt goes on, which does not."""
    seqs = [PrefillSeq(row, 0, pack_ids([1]), pack_ids([row]), b"", None, True) for row in rows]
    if chunk_of is not None:
        seqs.insert(0, PrefillSeq(chunk_of, 0, pack_ids([1]), pack_ids([chunk_of]), b"", None, False))
    return BatchPlan(turn, seqs)


def decode(turn: int, *rows: int) -> BatchPlan:
    return BatchPlan(turn, [], pack_ids(rows), pack_ids(rows))


# ---------------------------------------------------------------------- 5a, 5b: placeholders


@task("5a_map")
@pytest.mark.timeout(10)
def test_placeholders_are_negative_and_different_and_resolve_to_what_was_stored():
    tokens = adapters.token_map(8)
    first, second = tokens.reserve(3), tokens.reserve(2)
    names = np.concatenate([first, second])
    assert names.max() < 0 and len(set(names.tolist())) == 5
    tokens.store(first, ids(40, 0, 42))
    tokens.store(second, ids(7, 8))
    asked = ids(first[1], 0, second[1], 5, first[0])
    before = asked.copy()
    cost(f"{names.tolist()} for 5 tokens, a map of 8")
    assert tokens.resolve(asked).tolist() == [0, 0, 8, 5, 40], "0 is a token id, too"
    assert asked.tolist() == before.tolist(), "what was asked for is not written to"


@task("5a_map")
@pytest.mark.timeout(10)
def test_a_map_is_used_again_and_again():
    """The newest 6 placeholders of a map of 6, whatever came before them."""
    tokens = adapters.token_map(6)
    newest: list[tuple[int, int]] = []
    for turn in range(50):
        n = turn % 4
        names = tokens.reserve(n)
        tokens.store(names, np.arange(100 * turn, 100 * turn + n, dtype=np.int32))
        newest = (newest + list(zip(names.tolist(), range(100 * turn, 100 * turn + n), strict=True)))[-6:]
        asked = ids(*(name for name, _ in newest))
        assert tokens.resolve(asked).tolist() == [token for _, token in newest], turn
    cost("75 tokens through a map of 6")


@task("5b_names")
@pytest.mark.timeout(10)
def test_a_row_is_fed_what_it_sampled_last():
    """Before that is known by its placeholder, and afterwards by its id."""
    names = adapters.input_names(4, adapters.token_map(8))
    first = names.launch(prefill(1, 2, 0))
    second = names.launch(decode(2, 0, 2))
    assert len(first.input_ids) == 0 and len(first.names) == 2
    assert second.input_ids.tolist() == first.names[[1, 0]].tolist()
    names.commit(first, ids(22, 20))
    third = names.launch(decode(3, 0, 2))
    assert third.input_ids.tolist() == second.names.tolist()
    names.commit(second, ids(30, 32))
    names.commit(third, ids(40, 42))
    fourth = names.launch(decode(4, 2, 0))
    cost(f"fed in turn 2 {second.input_ids.tolist()}, in turn 4 {fourth.input_ids.tolist()}")
    assert fourth.input_ids.tolist() == [42, 40]


@task("5b_names")
@pytest.mark.timeout(10)
def test_a_row_that_waits_while_others_are_prefilled_is_fed_its_token():
    """Its placeholder is used for others by then."""
    names = adapters.input_names(2, adapters.token_map(4))
    launches = [names.launch(prefill(1, 0))]
    for turn in range(2, 20):
        launches.append(names.launch(prefill(turn, 1)))
        names.commit(launches[-2], ids(500 + turn - 1))
    cost("18 prefills of another row in between")
    assert names.launch(decode(20, 0)).input_ids.tolist() == [501]


@task("5b_names")
@pytest.mark.timeout(10)
def test_a_row_that_was_given_to_another_request_keeps_the_new_name():
    """Turn 2 computes row 0 one step too far; meanwhile turn 3 prefills another request in that row."""
    names = adapters.input_names(2, adapters.token_map(4))
    first = names.launch(prefill(1, 0, 1))
    second = names.launch(decode(2, 0, 1))
    names.commit(first, ids(10, 11))
    third = names.launch(prefill(3, 0))
    names.commit(second, ids(20, 21))
    fourth = names.launch(decode(4, 0, 1))
    cost(f"fed in turn 4: {fourth.input_ids.tolist()}")
    assert fourth.input_ids.tolist() == [int(third.names[0]), 21]


# ---------------------------------------------------------------------- 5c: the thread


class Forwards:
    """Executes nothing: the token of a row is the id it was fed and 1, or 10 for a prefill."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[int]]] = []
        self.threads: set[int] = set()
        self.held = threading.Event()
        self.held.set()

    def execute(self, plan: BatchPlan, input_ids: np.ndarray) -> Sampled:
        self.held.wait()
        self.threads.add(threading.get_ident())
        self.seen.append((plan.turn, input_ids.tolist()))
        if plan.turn == 99:
            raise FloatingPointError("the logits of turn 99")
        return Sampled(input_ids + 1 if plan.decode_rows else ids(*[10] * plan.sampled_count()))


@task("5c_forward")
@pytest.mark.timeout(10)
def test_launches_are_executed_in_order_on_one_other_thread():
    forwards, tokens = Forwards(), adapters.token_map(8)
    names = adapters.input_names(2, tokens)
    thread = adapters.forward_thread(forwards.execute, tokens)
    launches = [names.launch(plan) for plan in (prefill(1, 0, 1), decode(2, 0, 1), decode(3, 1))]
    for launch in launches:
        thread.launch(launch)
    results = [thread.result().ids.tolist() for _ in launches]
    thread.stop()
    cost(f"fed, resolved on the thread: {forwards.seen}")
    assert results == [[10, 10], [11, 11], [12]]
    assert forwards.seen == [(1, []), (2, [10, 10]), (3, [11])]
    assert len(forwards.threads) == 1 and threading.get_ident() not in forwards.threads


@task("5c_forward")
@pytest.mark.timeout(10)
def test_launch_does_not_wait_and_stop_does():
    forwards, tokens = Forwards(), adapters.token_map(8)
    thread = adapters.forward_thread(forwards.execute, tokens)
    forwards.held.clear()
    for turn in range(1, 4):
        thread.launch(Launch(prefill(turn, 0), ids(), tokens.reserve(1)))
    assert forwards.seen == [], "held, and launch came back all the same"
    threading.Timer(0.1, forwards.held.set).start()
    thread.stop()
    cost("3 launches before the first forward")
    assert [turn for turn, _ in forwards.seen] == [1, 2, 3]


@task("5c_forward")
@pytest.mark.timeout(10)
def test_what_a_forward_raises_is_raised_where_its_result_is_taken():
    """In 0.3.4 the thread died without a word, and the scheduler waited for ever."""
    forwards, tokens = Forwards(), adapters.token_map(8)
    thread = adapters.forward_thread(forwards.execute, tokens)
    thread.launch(Launch(prefill(1, 0), ids(), tokens.reserve(1)))
    thread.launch(Launch(prefill(99, 0), ids(), tokens.reserve(1)))
    assert thread.result().ids.tolist() == [10]
    with pytest.raises(FloatingPointError, match="the logits of turn 99"):
        thread.result()
    thread.stop()
    cost("one exception, on the thread that waits")


# ---------------------------------------------------------------------- 5d: the loop


def same_tokens(messages_of, **settings) -> harness.Outputs:
    """Both loops on the same traffic."""
    ahead, _, _ = harness.run_overlapped(adapters.overlap_loop, messages_of(), **settings)
    normal = harness.run_normal(messages_of(), **settings)
    assert ahead.tokens == normal.tokens
    assert ahead.finish == normal.finish
    return normal


@task("5d_loop")
@pytest.mark.timeout(60)
def test_the_tokens_of_the_normal_loop():
    """Ends by length, by stop ids and by stop strings, some of them in the middle of a batch."""
    normal = same_tokens(lambda: harness.mixed_traffic(seed=1, count=30))
    kinds = {kind for kind, _ in normal.finish.values()}
    cost(f"{len(normal.tokens)} requests, {sum(map(len, normal.tokens.values()))} tokens, all equal")
    assert kinds == {"length", "stop"}


@task("5d_loop")
@pytest.mark.timeout(60)
def test_the_tokens_under_pressure():
    """A pool that runs dry, so that requests are retracted, and prompts in chunks."""
    pressure = {"max_total_tokens": 200, "chunked_prefill_size": 24, "schedule_conservativeness": 0.01}
    normal = same_tokens(lambda: harness.mixed_traffic(2, count=24, every=1, longest=40, stops=False), **pressure)
    retractions = normal.stats["retractions"]
    cost(f"{len(normal.tokens)} requests in 200 slots, {retractions} retractions, all tokens equal")
    assert retractions > 0, "the pool never ran dry: nothing was tested"


@task("5d_loop")
@pytest.mark.timeout(60)
def test_a_row_that_waits_for_its_next_step_while_many_are_prefilled():
    """A newcomer in each turn, of one token: prefills go first, so the long request waits with its token."""

    def messages():
        found = {1: [harness.make_request("long", [5, 6, 7], max_new_tokens=12)]}
        for turn in range(2, 40):
            found[turn] = [harness.make_request(f"n{turn}", [turn, 3, turn], max_new_tokens=1)]
        return found

    normal = same_tokens(messages, max_running_requests=4)
    cost(f"the long request's {len(normal.tokens['long'])} tokens, behind 38 prefills")


@task("5d_loop")
@pytest.mark.timeout(60)
def test_control_messages_wait_for_the_turn_in_flight():
    """Aborts in the middle of decoding, statistics, a flush that is refused: each has its reply, and nobody else is
    touched."""

    def messages(control: bool):
        found = {1: [harness.make_request(f"r{i}", [i + 1, 2, 3], max_new_tokens=40) for i in range(4)]}
        if control:
            found[10] = [AbortRequest(1, "r1")]
            found[14] = [StatsRequest(2), AbortRequest(3, "nobody")]
            found[16] = [harness.make_request("late", [9, 9], max_new_tokens=5), FlushRequest(4), AbortRequest(5, "r3")]
        return found

    ahead, _, _ = harness.run_overlapped(adapters.overlap_loop, messages(True))
    whole = harness.run_normal(messages(False))
    answers = {id: ok for id, (ok, _) in ahead.replies.items() if id}
    cost(f"{len(answers)} replies; r1 ended after {len(ahead.tokens['r1'])} tokens, r3 after {len(ahead.tokens['r3'])}")
    assert answers == {1: True, 2: True, 3: False, 4: False, 5: True}
    for rid in ("r1", "r3"):
        assert ahead.finish[rid][0] == "abort"
        assert ahead.tokens[rid] == whole.tokens[rid][: len(ahead.tokens[rid])] != whole.tokens[rid]
    assert ahead.tokens["r0"] == whole.tokens["r0"] and ahead.tokens["r2"] == whole.tokens["r2"]
    assert len(ahead.tokens["late"]) == 5


# ---------------------------------------------------------------------- 5e, 5f, 5g: what came of it


@task("5e_overlap")
@pytest.mark.timeout(10)
def test_counting_by_hand():
    """Turn 1 is overlapped; turn 2 is not, because 3 was planned after it; behind 3 comes nothing."""
    events = [("plan", 1), ("begin", 1), ("plan", 2), ("end", 1), ("begin", 2), ("end", 2)]
    events += [("plan", 3), ("begin", 3), ("end", 3)]
    assert adapters.overlapped(events) == (1, 3)
    cost("1 of 3 forwards")


@task("5e_overlap")
@pytest.mark.timeout(60)
def test_the_next_turn_is_planned_while_the_forward_runs():
    """All but the last forward, with nothing but requests to take in; a tenth less is allowed."""

    def messages():
        return {1: [harness.make_request(f"r{i}", [i + 1, 2], max_new_tokens=20) for i in range(4)]}

    assert adapters.overlapped([]) == (0, 0)
    _, executor, _ = harness.run_overlapped(adapters.overlap_loop, messages(), harness.Watched)
    ends = {turn: place for place, (kind, turn) in enumerate(executor.events) if kind == "end"}
    plans = {turn: place for place, (kind, turn) in enumerate(executor.events) if kind == "plan"}
    truth = sum(turn + 1 in plans and plans[turn + 1] < place for turn, place in ends.items())
    hidden, forwards = adapters.overlapped(executor.events)
    cost(f"{hidden} of {forwards} forwards ran while the next turn was planned")
    assert (hidden, forwards) == (truth, len(ends))
    assert forwards == 21, "a prefill, 19 steps, and one too far"
    assert hidden >= 0.9 * forwards


@task("5f_engine")
@pytest.mark.timeout(120)
def test_two_ranks_of_the_peer_stage_run_it():
    """Four processes: each rank has its own loop, thread, and map; both must plan alike (`check_divergence`)."""
    # With nothing in place of a scheduler: before this is written it is not worth an engine.
    with pytest.raises(AttributeError):
        adapters.event_loop(None, None)
    messages = harness.mixed_traffic(seed=4, count=12, every=1)
    requests = [request for batch in messages.values() for request in batch]
    settings = {"max_total_tokens": 2000, "max_running_requests": 8, "context_length": 500, "model_path": "tiny"}
    with Engine(stage=f"{__package__}.stage:launch", tp_size=2, check_divergence=1, **settings) as engine:
        streams = engine.submit(requests)
        results = [stream.result() for stream in streams]
        assert engine.flush_cache()
        (stats,) = engine.stats()
    normal = harness.run_normal(harness.mixed_traffic(seed=4, count=12, every=1))
    tokens = list(normal.tokens.values())
    cost(f"{len(results)} requests, {sum(map(len, tokens))} tokens over 2 ranks, {stats['turns']} turns")
    assert [result["output_ids"] for result in results] == [normal.tokens.get(f"r{i}", []) for i in range(12)]


@task("5g_too_far")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("lengths", [[1], [9], [3, 5, 5, 8], [0, 1, 2]])
def test_the_predicted_rows_are_those_that_were_computed(lengths):
    predicted = {overlap: adapters.decode_rows_computed(lengths, overlap) for overlap in (False, True)}
    messages = {1: [harness.make_request(f"r{i}", [i + 1, 2], max_new_tokens=n) for i, n in enumerate(lengths)]}
    _, executor, too_far = harness.run_overlapped(adapters.overlap_loop, messages, harness.Counted)
    cost(f"{lengths}: {predicted[False]} rows in the normal loop, {executor.decode_rows} here; too far: {too_far}")
    assert predicted[True] == executor.decode_rows
    assert predicted[False] == sum(n - 1 for n in lengths if n)
    assert too_far == [f"r{i}" for n, i in sorted((n, i) for i, n in enumerate(lengths)) if n]


@task("5g_too_far")
@pytest.mark.timeout(60)
def test_who_was_computed_too_far_in_mixed_traffic():
    """Not all: a request that ends while the next turn is a prefill is not in that."""
    assert adapters.decode_rows_computed([], True) == 0
    ahead, executor, too_far = harness.run_overlapped(
        adapters.overlap_loop, harness.mixed_traffic(seed=5, count=24), harness.Counted
    )
    truth = {rid for rid, count in executor.sampled.items() if count > len(ahead.tokens.get(rid, []))}
    cost(f"{len(truth)} of {len(ahead.finish)} requests were computed one step too far")
    assert 0 < len(truth) < len(ahead.finish)
    assert set(too_far) == truth and len(too_far) == len(truth)
