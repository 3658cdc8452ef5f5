"""The scheduler's rules, one by one, mostly with tokens given by hand."""

import numpy as np
import pytest

from common.admission import NewTokenRatio
from common.messages import FinishReason, GenerateRequest, SamplingParams, pack_ids, unpack_ids
from common.policy import LPM_MOST_WAITING
from common.scheduler import Scheduler, SchedulerConfig
from common.turn import TurnRules
from tests.unit.fake_executor import EOS, FakeExecutor, check_accounts, expected_tokens, run_dry, take_turn


def make(decode_text=None, **change) -> Scheduler:
    defaults = {
        "max_total_tokens": 1000,
        "max_running_requests": 8,
        "context_length": 500,
        "chunked_prefill_size": -1,
        "policy": "lpm",
        "radix": True,
        "eos_token_ids": (EOS,),
    }
    return Scheduler(SchedulerConfig(**{**defaults, **change}), decode_text)


def request(rid: str, ids, stream=False, **sampling) -> GenerateRequest:
    sampling.setdefault("max_new_tokens", 4)
    return GenerateRequest(rid, pack_ids(ids), SamplingParams(**sampling), stream)


def turn(scheduler: Scheduler, *tokens: int):
    """Plan a turn that must sample these tokens, and commit it."""
    plan = scheduler.plan()
    assert plan.sampled_count() == len(tokens)
    scheduler.commit(plan, tokens)
    return plan


def rows(plan) -> list[int]:
    return unpack_ids(plan.decode_rows).tolist()


# ------------------------------------------------------------------ the turn


def test_prefill_comes_first_then_decode_and_turns_count_from_1():
    s = make()
    assert s.plan() is None
    s.add(request("a", [1, 2, 3]))
    first = turn(s, 10)
    assert (first.turn, first.decode_rows) == (1, b"")
    (seq,) = first.prefill
    assert (seq.row, seq.start, seq.input_ids, seq.prefix_slots, seq.sample) == (0, 0, pack_ids([1, 2, 3]), b"", True)
    second = turn(s, 11)
    assert (second.turn, second.prefill, rows(second)) == (2, [], [0])
    s.add(request("b", [7, 8]))
    assert [seq.row for seq in turn(s, 20).prefill] == [1]
    assert rows(turn(s, 12, 21)) == [0, 1]


def test_only_the_last_plan_can_be_committed_and_once():
    s = make()
    s.add(request("a", [1, 2]))
    plan = s.plan()
    with pytest.raises(RuntimeError, match="not committed"):
        s.plan()
    with pytest.raises(RuntimeError, match="not committed"):
        s.abort("a")
    with pytest.raises(ValueError, match="samples 1 tokens, got 2"):
        s.commit(plan, [1, 2])
    s.commit(plan, np.array([1], dtype=np.int32))
    with pytest.raises(ValueError, match="only the oldest open plan"):
        s.commit(plan, [1])


def test_add_refuses_what_can_never_run():
    s = make(max_total_tokens=10)
    s.add(request("a", [1]))
    for bad, message in [
        (request("b", []), "1 to 10 tokens, it has 0"),
        (request("b", range(11)), "1 to 10 tokens, it has 11"),
        (request("a", [1]), "here already"),
        (request("b", [1], stop=("x",)), "decode_text"),
    ]:
        with pytest.raises(ValueError, match=message):
            s.add(bad)


@pytest.mark.parametrize(
    "change",
    [{"max_total_tokens": 0}, {"chunked_prefill_size": 0}, {"policy": "sjf"}, {"schedule_conservativeness": 0.0}],
)
def test_a_config_without_sense_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        make(**change)


@pytest.mark.parametrize("limits", [{"max_total_tokens": 10}, {"context_length": 10}])
@pytest.mark.parametrize("prompt_len", [1, 9, 10])
def test_max_new_tokens_is_clipped_so_that_prompt_and_output_fit_exactly(limits, prompt_len):
    s = make(**limits)
    r = request("a", range(prompt_len), max_new_tokens=100, ignore_eos=True)
    s.add(r)
    run_dry(s, FakeExecutor())
    (chunk,) = s.take_chunks()
    assert chunk.finish == FinishReason("length")
    assert chunk.new_ids == expected_tokens(r, 10 - prompt_len)
    check_accounts(s)


# ------------------------------------------------------------------ finishing


def finish_of(tokens: list[int], decode_text=None, **sampling):
    """The finish reason and the ids of a request that samples `tokens`."""
    s = make(decode_text)
    s.add(request("a", [1, 2], max_new_tokens=sampling.pop("max_new_tokens", 20), **sampling))
    for token in tokens:
        assert s.has_work
        turn(s, token)
    assert not s.has_work, "not finished by the last token"
    (chunk,) = s.take_chunks()
    check_accounts(s)
    return chunk.finish, chunk.new_ids


def test_eos_ends_and_is_in_the_output():
    assert finish_of([9, EOS]) == (FinishReason("stop", EOS), [9, EOS])


def test_ignore_eos_turns_eos_off_but_not_stop_token_ids():
    assert finish_of([EOS, 9, 3], ignore_eos=True, stop_token_ids=(3,)) == (FinishReason("stop", 3), [EOS, 9, 3])


def test_length_ends_and_a_stop_on_the_last_token_goes_before_it():
    assert finish_of([9, 9], max_new_tokens=2) == (FinishReason("length"), [9, 9])
    assert finish_of([9, EOS], max_new_tokens=2) == (FinishReason("stop", EOS), [9, EOS])


def letters(ids: list[int], skip: bool = True) -> str:
    return "".join(chr(97 + i) for i in ids)


def test_a_stop_string_is_found_across_token_borders():
    assert finish_of([0, 1, 2, 3], letters, stop=("bcd",)) == (FinishReason("stop", "bcd"), [0, 1, 2, 3])


def test_of_several_stop_strings_the_one_that_ends_first_wins_then_the_earliest_in_the_list():
    words = {20: "one two three"}
    decode = lambda ids, skip: "".join(words.get(i, letters([i])) for i in ids)  # noqa: E731
    assert finish_of([20], decode, stop=("three", "two"))[0] == FinishReason("stop", "two")
    assert finish_of([20], decode, stop=("e two", "two"))[0] == FinishReason("stop", "e two")
    assert finish_of([20], decode, stop=("two", "e two"))[0] == FinishReason("stop", "two")


def test_a_stop_string_of_bytes_that_come_one_by_one():
    stop = "é☃𝄞"
    data = stop.encode()
    decode = lambda ids, skip: bytes(ids).decode(errors="replace")  # noqa: E731
    reason, ids = finish_of(list(b"xx" + data), decode, stop=(stop,))
    assert reason == FinishReason("stop", stop)
    assert bytes(ids) == b"xx" + data


def test_only_the_tail_of_the_output_is_decoded():
    seen = []

    def decode(ids, skip):
        seen.append(len(ids))
        return letters(ids)

    finish_of([5] * 19 + [0], decode, stop=("fa",))
    assert max(seen) == 3


def test_max_new_tokens_0_caches_the_prompt_and_ends():
    s = make()
    s.add(request("a", [1, 2, 3], max_new_tokens=0))
    plan = turn(s)
    assert plan.prefill[0].sample is False
    (chunk,) = s.take_chunks()
    assert (chunk.new_ids, chunk.finish) == ([], FinishReason("length"))
    assert s.stats()["evictable_tokens"] == 3
    assert s.plan() is None


# ------------------------------------------------------------------ chunks


def test_one_chunk_at_the_end_unless_streamed():
    s = make()
    s.add(request("a", [1, 2], stop_token_ids=(3,), skip_special_tokens=False))
    for token in (9, 9):
        turn(s, token)
        assert s.take_chunks() == []
    turn(s, 3)
    (chunk,) = s.take_chunks()
    assert chunk.new_ids == [9, 9, 3]
    assert (chunk.prompt_tokens, chunk.cached_tokens, chunk.skip_special_tokens) == (2, 0, False)
    assert s.take_chunks() == []


def test_the_first_token_is_streamed_then_each_interval():
    s = make(letters, rules=TurnRules(stream_interval=3))
    s.add(request("a", [1, 2], stream=True, max_new_tokens=9, stop=("zz",), skip_special_tokens=False))
    chunks = []
    for token in range(10, 19):
        turn(s, token)
        chunks += s.take_chunks()
    assert [chunk.new_ids for chunk in chunks] == [[10], [11, 12, 13], [14, 15, 16], [17, 18]]
    assert [chunk.finish is None for chunk in chunks] == [True, True, True, False]
    assert [chunk.stop for chunk in chunks] == [("zz",), (), (), ()]
    assert [chunk.skip_special_tokens for chunk in chunks] == [False, True, True, True]
    assert {chunk.prompt_tokens for chunk in chunks} == {2}


# ------------------------------------------------------------------ the cache


def test_a_running_request_shares_its_prompt():
    s = make()
    s.add(request("a", [1, 2, 3, 4]))
    a = turn(s, 10)
    s.add(request("b", [1, 2, 3, 9]))
    b = turn(s, 20)
    assert b.prefill[0].start == 3
    assert b.prefill[0].prefix_slots == a.prefill[0].new_slots[: 4 * 3]
    s.abort("b")
    assert s.take_chunks()[-1].cached_tokens == 3
    check_accounts(s)


def test_of_a_prompt_cached_in_full_the_last_token_is_computed():
    s = make()
    for rid in "ab":
        s.add(request(rid, [1, 2, 3], max_new_tokens=1))
        plan = turn(s, 10)
    assert (plan.prefill[0].start, plan.prefill[0].input_ids) == (2, pack_ids([3]))


def test_the_output_is_cached_without_its_last_token():
    s = make()
    s.add(request("a", [1, 2], max_new_tokens=3))
    for token in (10, 11, 12):
        turn(s, token)
    assert s.stats()["evictable_tokens"] == 4
    s.add(request("b", [1, 2, 10, 11, 12, 13]))
    assert turn(s, 20).prefill[0].start == 4


def test_twins_of_one_batch_keep_their_own_slots_until_they_end():
    s = make()
    s.add(request("a", [1, 2, 3], max_new_tokens=2))
    s.add(request("b", [1, 2, 3], max_new_tokens=3))
    plan = turn(s, 10, 20)
    assert [seq.start for seq in plan.prefill] == [0, 0]
    check_accounts(s)
    turn(s, 11, 21)
    stats = s.stats()
    assert (stats["protected_tokens"], stats["evictable_tokens"]) == (0, 4)  # b holds nothing of a's
    assert stats["free_tokens"] == 1000 - 4 - 4
    turn(s, 22)
    stats = s.stats()
    assert (stats["evictable_tokens"], stats["free_tokens"]) == (4 + 2, 1000 - 6)  # 1 2 3 (10 | 20 21)


def test_without_the_radix_cache_everything_is_free_at_the_end():
    s = make(radix=False)
    for rid in "ab":
        s.add(request(rid, [1, 2, 3], max_new_tokens=2))
        assert turn(s, 10).prefill[0].start == 0
        turn(s, 11)
        assert s.stats()["free_tokens"] == 1000


def test_flush_only_when_idle_and_then_all_is_new():
    s = make()
    s.add(request("a", [1, 2, 3], max_new_tokens=1))
    s.add(request("b", [4] * 3, max_new_tokens=2))
    assert s.flush() == (False, "0 requests run and 2 wait; flush when idle")
    turn(s, 10, 11)
    assert s.flush() == (False, "1 requests run and 0 wait; flush when idle")
    turn(s, 12)
    assert s.flush() == (True, "")
    assert s.stats()["free_tokens"] == 1000
    s.add(request("a", [1, 2, 3]))
    assert turn(s, 10).prefill[0].new_slots == pack_ids([0, 1, 2])


# ------------------------------------------------------------------ abort


def test_abort_of_a_waiting_a_running_and_an_unknown_request():
    s = make(max_running_requests=1)
    s.add(request("a", [1, 2, 3]))
    s.add(request("b", [1, 2, 4]))
    turn(s, 10)
    assert (s.running_count, s.waiting_count) == (1, 1)
    assert s.abort("b")
    assert s.abort("a")
    assert not s.abort("a")
    assert not s.abort("c")
    b, a = s.take_chunks()
    assert (b.rid, b.new_ids, b.finish.type, b.prompt_tokens) == ("b", [], "abort", 3)
    assert (a.rid, a.new_ids, a.finish.type) == ("a", [10], "abort")
    assert not s.has_work
    assert s.finished_count == 2
    assert s.stats()["free_tokens"] + s.stats()["evictable_tokens"] == 1000
    s.add(request("a", [5]))
    assert turn(s, 10).prefill[0].row == 0


def test_abort_between_two_chunks_of_a_prompt():
    s = make(chunked_prefill_size=2)
    s.add(request("a", [1, 2, 3, 4, 5]))
    s.add(request("b", [8, 9]))
    turn(s)
    assert s.abort("a")
    check_accounts(s)
    assert turn(s, 10).prefill[0].input_ids == pack_ids([8, 9])


# ------------------------------------------------------------------ admission


def test_a_prompt_is_cut_into_chunks_and_others_fill_what_the_last_leaves():
    s = make(chunked_prefill_size=4, policy="fcfs")
    s.add(request("a", range(10)))
    s.add(request("b", [20]))
    s.add(request("c", [30, 31, 32]))
    seen = []
    for tokens in ([], [], [10, 11], [12]):
        plan = turn(s, *tokens)
        check_accounts(s)
        seen.append([(seq.row, seq.start, len(seq.input_ids) // 4, seq.sample) for seq in plan.prefill])
        assert all((seq.sampling is None) == (seq.start > 0) for seq in plan.prefill)
    assert seen == [
        [(0, 0, 4, False)],
        [(0, 4, 4, False)],
        [(0, 8, 2, True), (1, 0, 1, True), (2, 0, 1, False)],
        [(2, 1, 2, True)],
    ]
    assert rows(turn(s, 13, 14, 15)) == [0, 1, 2]


def test_while_a_prompt_fills_the_chunk_the_queue_is_not_looked_at(monkeypatch):
    s = make(chunked_prefill_size=4)
    s.add(request("a", range(10)))
    s.add(request("b", [20]))
    turn(s)
    monkeypatch.setattr(s, "_admit", lambda *_: pytest.fail("looked at the queue with no chunk left"))
    turn(s)


def test_a_full_chunk_does_not_close_the_batch():
    """In the turn that admits a, its 50 tokens count in full and b does not fit; in the next they count 0.7."""
    s = make(chunked_prefill_size=4, max_total_tokens=83)
    s.add(request("a", [1] * 4, max_new_tokens=50))
    s.add(request("b", [2] * 4, max_new_tokens=40))
    assert len(turn(s, 9).prefill) == 1
    assert len(turn(s, 9).prefill) == 1


def test_the_lowest_free_row_is_taken():
    s = make(policy="fcfs")
    for rid in "abcd":
        s.add(request(rid, [ord(rid)]))
    turn(s, 9, 9, 9, 9)
    for rid in "ca":
        s.abort(rid)
    for rid in "efg":
        s.add(request(rid, [ord(rid)]))
    assert [seq.row for seq in turn(s, 9, 9, 9).prefill] == [0, 2, 4]
    assert rows(turn(s, 9, 9, 9, 9, 9)) == [1, 3, 0, 2, 4]


def test_a_turn_takes_max_prefill_tokens_but_for_a_first_request_that_is_longer():
    s = make(max_prefill_tokens=5, policy="fcfs")
    for rid, n in [("a", 7), ("b", 3), ("c", 2), ("d", 1)]:
        s.add(request(rid, [ord(rid)] * n))
    assert [len(seq.input_ids) // 4 for seq in turn(s, 1).prefill] == [7]
    assert [len(seq.input_ids) // 4 for seq in turn(s, 1, 1).prefill] == [3, 2]
    assert [len(seq.input_ids) // 4 for seq in turn(s, 1).prefill] == [1]


def test_no_more_than_max_running_requests_and_the_queue_is_not_looked_at_meanwhile(monkeypatch):
    s = make(max_running_requests=2)
    for i, rid in enumerate("abc"):
        s.add(request(rid, [i], max_new_tokens=3 + i))
    assert len(turn(s, 1, 1).prefill) == 2
    monkeypatch.setattr(s, "_admit", lambda *_: pytest.fail("looked at the queue of a full batch"))
    turn(s, 2, 2)
    turn(s, 3, 3)
    monkeypatch.undo()
    assert len(turn(s, 1).prefill) == 1


def test_admission_keeps_slots_for_what_is_to_come():
    """New requests count in full, running ones by the ratio, 0.7 at first."""
    s = make(max_total_tokens=100, policy="fcfs", radix=False)
    s.add(request("a", [1] * 10, max_new_tokens=50))
    s.add(request("b", [2] * 10, max_new_tokens=31))  # 10 + 31 > 100 - 10 - 50
    s.add(request("c", [3], max_new_tokens=1))  # would fit, but stands behind
    assert len(turn(s, 1).prefill) == 1
    turn(s, 1)  # full
    assert s.waiting_count == 2
    s.abort("b")
    assert len(turn(s, 1).prefill) == 1
    # 100 - 11 are free; kept for a are 48 * 0.7, less one decay: 55.4 are left. After one more decode 55.2.
    s.add(request("d", [4] * 10, max_new_tokens=46))
    assert turn(s, 1).prefill == []
    s.abort("d")
    s.add(request("e", [4] * 10, max_new_tokens=45))
    assert len(turn(s, 1).prefill) == 1


def test_decode_turns_let_more_requests_in():
    """After 300 of 900 tokens the ratio is 0.4: some 240 slots are kept for a, at 0.7 it would be 420 of 699."""
    s = make(context_length=1000)
    s.add(request("a", [1], max_new_tokens=900))
    for _ in range(301):
        turn(s, 9)
    s.add(request("b", [2] * 10, max_new_tokens=300))
    assert len(turn(s, 9).prefill) == 1


def test_lpm_admits_what_is_cached_first_and_fcfs_does_not():
    for policy, order in [("lpm", [3, 5, 4, 4]), ("fcfs", [4, 5, 3, 4])]:
        s = make(policy=policy)
        s.add(request("x", [1, 2, 3, 4], max_new_tokens=1))
        turn(s, 9)
        for ids in ([7, 7, 7, 7], [1, 2, 3, 8, 8, 8, 8, 8], [1, 2, 3, 4, 5, 6, 7], [6, 6, 6, 6]):
            s.add(request(str(ids), ids))
        plan = turn(s, 1, 1, 1, 1)
        assert [len(seq.input_ids) // 4 for seq in plan.prefill] == order


def test_lpm_is_fcfs_above_128_waiting():
    s = make(max_total_tokens=10_000, max_running_requests=1)
    s.add(request("x", [1, 2, 3], max_new_tokens=1))
    turn(s, 9)
    for i in range(LPM_MOST_WAITING):
        s.add(request(str(i), [100 + i, 5], max_new_tokens=1))
    s.add(request("y", [1, 2, 3, 4], max_new_tokens=1))
    assert turn(s, 9).prefill[0].input_ids == pack_ids([100, 5])
    assert turn(s, 9).prefill[0].input_ids == pack_ids([4])


# ------------------------------------------------------------------ retraction


def test_retraction_drops_the_fewest_outputs_then_the_longest_prompt_then_the_last():
    s = make(max_total_tokens=32, policy="fcfs", radix=False, schedule_conservativeness=0.01)
    s.add(request("a", [1] * 10, max_new_tokens=8))
    turn(s, 11)
    turn(s, 12)
    for rid, n in [("b", 4), ("c", 6), ("d", 6)]:
        s.add(request(rid, [ord(rid)] * n))
        turn(s, 20)
    turn(s, 13, 21, 31, 41)
    # 31 of 32 slots are taken. Without d 8 are free and 5 + 2 + 2 may still be wanted; without c, too, 15 and 5 + 2.
    assert rows(turn(s, 14, 22)) == [0, 1]
    assert s.retraction_count == 2
    assert list(s._waiting) == ["c", "d"]
    check_accounts(s)
    turn(s, 15, 23)  # what is kept for a and b has no place for c before b ends
    assert turn(s, 32).prefill[0].input_ids == pack_ids([ord("c")] * 6 + [20, 31])


def test_retraction_drops_no_more_than_the_others_need_and_opens_the_queue(monkeypatch):
    s = make(max_total_tokens=15, max_running_requests=3, policy="fcfs", radix=False, schedule_conservativeness=0.01)
    for rid in "abcd":
        s.add(request(rid, [ord(rid)] * 3, max_new_tokens=5))
        if rid != "d":
            turn(s, 9)
    turn(s, 9, 9, 9)
    turn(s, 9, 9, 9)  # 3 * (3 + 2) slots are taken, and each may still produce 2 tokens
    looked = []
    monkeypatch.setattr(s, "_admit", lambda *_: looked.append(s._turn))
    assert rows(turn(s, 9, 9)) == [0, 1]  # 5 slots came back: too few for 3 * 2 tokens, enough for 2 * 2
    assert s.retraction_count == 1
    check_accounts(s)
    assert looked == []  # the batch was full
    turn(s, 9, 9)
    assert looked == [6]


def test_a_retracted_request_finds_its_prompt_in_the_tree():
    s = make(max_total_tokens=35, policy="fcfs", schedule_conservativeness=0.01)
    lengths = [("a", 1, 12), ("b", 2, 14)]
    requests = [request(rid, [i] * 10, max_new_tokens=n, ignore_eos=True) for rid, i, n in lengths]
    executor = FakeExecutor()
    for r in requests:
        s.add(r)
        take_turn(s, executor)
    while s.retraction_count == 0:
        take_turn(s, executor)
    (retracted,) = s._waiting.values()
    assert (retracted.rid, len(retracted.output)) == ("b", 8)
    while not (plan := take_turn(s, executor)).prefill:
        pass
    assert plan.prefill[0].start == 10
    assert retracted.cached == 0  # at the first admission


def test_a_lone_request_goes_on_to_the_last_slot():
    s = make(max_total_tokens=40, context_length=40, policy="fcfs")
    requests = [request(rid, [1, 2, 3, 4], max_new_tokens=36, ignore_eos=True, seed=ord(rid)) for rid in "ab"]
    s._ratio.value = 0.0
    for r in requests:
        s.add(r)
    executor = FakeExecutor()
    while take_turn(s, executor):
        check_accounts(s)
    got = {chunk.rid: chunk.new_ids for chunk in s.take_chunks()}
    assert got == {r.rid: expected_tokens(r, 36) for r in requests}


def test_the_ratio_decays_over_600_steps_and_idleness_resets_it():
    ratio = NewTokenRatio(1.0)
    values = [ratio.value]
    for _ in range(700):
        ratio.decay()
        values.append(ratio.value)
    assert values[0] == 0.7
    assert values[300] == pytest.approx((0.7 + 0.098) / 2)
    assert values[600] == pytest.approx(0.098)
    assert values[700] == pytest.approx(0.098)
    ratio.reset()
    assert ratio.value == 0.7
    assert NewTokenRatio(2.0).value == 1.0
