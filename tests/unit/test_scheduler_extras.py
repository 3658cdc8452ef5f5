"""What a request asks for beyond plain sampling: in the plan only where asked for, and whole after a retraction."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from common.batch import BatchPlan, RowSampling, TurnLogprobs
from common.messages import GenerateRequest, LogprobParams, SamplingParams, TokenLogprobs, pack_ids, unpack_ids
from common.scheduler import Scheduler, SchedulerConfig

EOS = 7


def make(**change) -> Scheduler:
    defaults = {
        "max_total_tokens": 1000,
        "max_running_requests": 20,
        "context_length": 500,
        "chunked_prefill_size": -1,
        "policy": "fcfs",
        "radix": True,
        "eos_token_ids": (EOS,),
    }
    return Scheduler(SchedulerConfig(**{**defaults, **change}), None)


def request(rid: str, ids, logprobs: LogprobParams | None = None, stream=False, **sampling) -> GenerateRequest:
    sampling.setdefault("max_new_tokens", 4)
    return GenerateRequest(rid, pack_ids(ids), SamplingParams(**sampling), stream, None, logprobs)


def logprobs_of(ids) -> TokenLogprobs:
    return TokenLogprobs(pack_ids(ids), np.full(len(ids), -1.0).tobytes())


def turn(scheduler: Scheduler, *tokens: int, prompt_parts: dict | None = None) -> BatchPlan:
    """Commit these tokens, with a log-probability for each row that has one."""
    plan = scheduler.plan()
    rows = [seq.row for seq in plan.prefill if seq.sample] or unpack_ids(plan.decode_rows).tolist()
    sampled = {row: logprobs_of([token]) for row, token in zip(rows, tokens, strict=True)}
    scheduler.commit(plan, tokens, TurnLogprobs(prompt_parts or {}, sampled))
    return plan


def test_a_plain_plan_does_not_grow() -> None:
    s = make()
    for i in range(16):
        s.add(request(f"r{i}", [i, i, i], temperature=0.5, top_p=0.9, top_k=20, max_new_tokens=5))
    prefill, decode = turn(s, *range(100, 116)), turn(s, *range(100, 116))
    assert prefill.extras == decode.extras == []
    for plan in (prefill, decode):
        assert b"extras" not in msgspec.msgpack.encode(plan)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=BatchPlan) == plan
    sampling = msgspec.msgpack.encode(RowSampling(0.5, 0.9, 20, 42))
    assert msgspec.msgpack.encode(prefill).count(sampling) == 16
    assert len(msgspec.msgpack.encode(decode)) < 128 + 60  # rows and slots, and the names of the fields


def test_extras_go_with_the_first_chunk_alone() -> None:
    s = make(chunked_prefill_size=4)
    s.add(request("a", range(10), repetition_penalty=1.5, min_new_tokens=2, stop_token_ids=(50, 3), min_p=0.1))
    plans = [turn(s), turn(s), turn(s, 20), turn(s, 21)]
    assert [len(plan.extras) for plan in plans] == [1, 0, 0, 0]
    (e,) = plans[0].extras
    assert (e.row, e.min_p, e.repetition_penalty, e.min_new_tokens) == (0, 0.1, 1.5, 2)
    assert unpack_ids(e.forbidden).tolist() == [3, EOS, 50]
    assert (e.prompt_len, e.prompt_ids, e.output_ids) == (10, pack_ids(range(10)), b"")
    assert (e.logprobs, e.logprob_start, e.top_logprobs) == (False, 10, 0)


def test_the_prompt_travels_only_where_it_is_looked_at() -> None:
    s = make()
    s.add(request("a", [1, 2, 3], frequency_penalty=1.0))
    s.add(request("b", [1, 2, 3], LogprobParams(3, 5)))
    s.add(request("c", [1, 2, 3], LogprobParams(2, 0)))
    s.add(request("d", [1, 2, 3], ignore_eos=True, min_new_tokens=1))
    extras = turn(s, 10, 10, 10, 10).extras
    assert [len(e.prompt_ids) // 4 for e in extras] == [0, 0, 3, 0]
    assert [(e.logprobs, e.logprob_start, e.top_logprobs) for e in extras] == [
        (False, 3, 0),
        (True, 3, 5),
        (True, 2, 0),
        (False, 3, 0),
    ]
    assert unpack_ids(extras[3].forbidden).tolist() == [EOS]  # ignore_eos does not allow it earlier, as in SGLang


@pytest.mark.parametrize(("start", "reused"), [(0, 0), (1, 0), (2, 1), (5, 4), (8, 7), (9, 8), (10, 9)])
def test_the_cached_prefix_ends_where_logits_are_wanted(start: int, reused: int) -> None:
    s = make()
    s.add(request("x", range(10), max_new_tokens=1))
    turn(s, 9)
    s.add(request("a", range(10), LogprobParams(start, 0)))
    (seq,) = turn(s, 20).prefill
    assert seq.start == reused
    assert seq.input_ids == pack_ids(range(reused, 10))


def test_the_first_chunk_of_output_brings_the_prompts_part_and_no_later_one() -> None:
    s = make(chunked_prefill_size=4)
    s.add(request("a", range(10), LogprobParams(0, 2), stream=True))
    turn(s, prompt_parts={0: logprobs_of([1, 2, 3, 4])})
    turn(s, prompt_parts={0: logprobs_of([5, 6, 7, 8])})
    assert s.take_chunks() == []
    turn(s, 20, prompt_parts={0: logprobs_of([9])})
    (chunk,) = s.take_chunks()
    assert unpack_ids(chunk.input_logprobs.ids).tolist() == list(range(10))
    values = np.frombuffer(chunk.input_logprobs.values)
    assert np.isnan(values).tolist() == [True] + [False] * 9
    assert chunk.output_logprobs.ids == pack_ids([20])
    turn(s, 21)
    (chunk,) = s.take_chunks()
    assert chunk.input_logprobs is None
    assert chunk.output_logprobs.ids == pack_ids([21])


def test_a_prompt_alone_and_an_abort_bring_what_there_is() -> None:
    s = make()
    s.add(request("a", range(3), LogprobParams(1, 0), max_new_tokens=0))
    turn(s, prompt_parts={0: logprobs_of([1, 2])})
    s.add(request("b", range(3), LogprobParams(3, 0)))
    s.abort("b")
    first, second = s.take_chunks()
    assert first.input_logprobs == logprobs_of([1, 2])
    assert first.output_logprobs == second.output_logprobs == TokenLogprobs(b"", b"")
    assert second.input_logprobs is None


def test_nothing_of_it_is_in_the_chunks_of_others() -> None:
    s = make()
    s.add(request("a", range(3), max_new_tokens=1))
    s.add(request("b", range(3), LogprobParams(3, 0), max_new_tokens=1))
    turn(s, 5, 6)
    plain, asked = s.take_chunks()
    assert (plain.input_logprobs, plain.output_logprobs) == (None, None)
    assert asked.output_logprobs == logprobs_of([6])
    assert b"logprobs" not in msgspec.msgpack.encode(plain)


def test_a_retracted_request_brings_its_output_and_asks_for_its_prompt_no_more() -> None:
    s = make(max_total_tokens=16, radix=False, schedule_conservativeness=0.01)
    s.add(request("a", [1] * 3, max_new_tokens=8))
    turn(s, 10)
    s.add(request("b", [2] * 4, LogprobParams(1, 0), max_new_tokens=8, repetition_penalty=1.2))
    turn(s, 20, prompt_parts={1: logprobs_of([2, 2, 2])})
    plans = []
    while s.has_work:
        waiting = list(s._waiting.values())
        plans.append(s.plan())
        tokens = [30 + i for i in range(plans[-1].sampled_count())]
        rows = [seq.row for seq in plans[-1].prefill] or unpack_ids(plans[-1].decode_rows).tolist()
        sampled = {row: logprobs_of([token]) for row, token in zip(rows, tokens, strict=True)}
        if plans[-1].prefill:
            (b,) = waiting
            (e,) = plans[-1].extras
            assert (e.logprob_start, e.prompt_ids, e.output_ids) == (4, pack_ids([2] * 4), pack_ids(b.output))
            assert len(b.output) > 1
        s.commit(plans[-1], tokens, TurnLogprobs({}, sampled))
    assert s.retraction_count == sum(len(plan.prefill) for plan in plans) == 1
    chunk = s.take_chunks()[-1]
    assert chunk.rid == "b"
    assert chunk.input_logprobs == logprobs_of([2, 2, 2])
    assert unpack_ids(chunk.output_logprobs.ids).tolist() == chunk.new_ids
    assert len(chunk.new_ids) == 8
