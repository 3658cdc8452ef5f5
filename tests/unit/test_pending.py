"""Pending requests: each gets one end, its own or the engine's."""

from __future__ import annotations

import threading

import pytest

from common.messages import FinishReason, GenerateRequest, TextBatch, TextChunk
from common.sampling_params import SamplingParams
from common.tracing import NoTrace
from evolution.pending import EngineError, PendingRequests


def make_pending() -> tuple[PendingRequests, list[GenerateRequest]]:
    sent: list[GenerateRequest] = []
    return PendingRequests(threading.RLock(), sent.append), sent


def request() -> GenerateRequest:
    return GenerateRequest("", b"", SamplingParams())


def last_chunk(rid: str, text: str) -> TextChunk:
    return TextChunk(rid, text, [1], FinishReason("length"))


def test_each_text_reaches_its_own_stream() -> None:
    pending, sent = make_pending()
    first, second = pending.hand_over([request(), request()], None)
    assert [message.rid for message in sent] == [first.rid, second.rid] and first.rid != second.rid
    pending.take(TextBatch(0, [last_chunk(second.rid, "b"), TextChunk(first.rid, "a", [1])]), NoTrace())
    assert second.result()["text"] == "b" and not first.done.is_set()
    assert len(pending) == 1


def test_the_end_of_the_engine_reaches_who_waits_and_who_comes_later() -> None:
    pending, sent = make_pending()
    done, waiting = pending.hand_over([request(), request()], None)
    pending.take(TextBatch(0, [last_chunk(done.rid, "a")]), NoTrace())
    pending.fail(EngineError("rank 1 died"))
    assert done.result()["text"] == "a"
    with pytest.raises(EngineError, match="rank 1 died"):
        waiting.result()
    with pytest.raises(EngineError, match="rank 1 died"):
        pending.hand_over([request()], None)
    assert len(sent) == 2 and len(pending) == 0


def test_the_first_cause_stays() -> None:
    pending, _ = make_pending()
    pending.fail(EngineError("rank 1 died"))
    pending.fail(EngineError("the engine was shut down"))
    with pytest.raises(EngineError, match="rank 1 died"):
        pending.raise_failure()


def test_a_text_that_comes_after_the_end_is_nobodys() -> None:
    pending, _ = make_pending()
    (stream,) = pending.hand_over([request()], None)
    pending.fail(EngineError("rank 1 died"))
    pending.take(TextBatch(0, [last_chunk(stream.rid, "late")]), NoTrace())
    with pytest.raises(EngineError, match="rank 1 died"):
        stream.result()


# ---------------------------------------------------------------------- a replica fails on its own


def degraded() -> tuple[PendingRequests, list[GenerateRequest], list]:
    """Three requests: to replica 0, 1 and 0."""
    sent: list[GenerateRequest] = []
    pending = PendingRequests(threading.RLock(), sent.append, keeps=True)
    streams = pending.hand_over([request() for _ in range(3)], None)
    pending.dispatched(0, [streams[0].rid, streams[2].rid])
    pending.dispatched(1, [streams[1].rid])
    return pending, sent, streams


def test_what_has_given_nothing_is_sent_again_and_the_rest_fails() -> None:
    pending, sent, (begun, elsewhere, untouched) = degraded()
    pending.take(TextBatch(0, [TextChunk(begun.rid, "a", [1])]), NoTrace())
    pending.lose(0, EngineError("replica 0 was lost: rank 1 died"))
    with pytest.raises(EngineError, match="replica 0 was lost: rank 1 died"):
        begun.result()
    assert len(sent) == 4 and not elsewhere.done.is_set()
    again = sent[3].rid
    assert again not in {message.rid for message in sent[:3]}
    pending.take(TextBatch(1, [last_chunk(untouched.rid, "late, of the first try")]), NoTrace())
    assert not untouched.done.is_set()
    pending.take(TextBatch(1, [last_chunk(again, "b"), last_chunk(elsewhere.rid, "c")]), NoTrace())
    assert (untouched.result()["text"], elsewhere.result()["text"]) == ("b", "c")
    assert untouched.result()["meta_info"]["id"] == untouched.rid
    assert len(pending) == 0 and not pending.failed


def test_a_request_that_was_sent_again_goes_by_the_id_that_its_caller_knows() -> None:
    pending, sent, streams = degraded()
    pending.lose(0, EngineError("gone"))
    assert pending.ids_of(streams[2].rid) == [sent[4].rid]
    assert pending.ids_of(streams[1].rid) == [streams[1].rid]
    assert pending.ids_of("unknown") == []


def test_a_second_loss() -> None:
    pending, sent, streams = degraded()
    pending.lose(0, EngineError("gone"))
    pending.dispatched(1, [message.rid for message in sent[3:]])
    pending.lose(1, EngineError("gone, too"))
    assert len(sent) == 8 and len({message.rid for message in sent}) == 8
    assert not any(stream.done.is_set() for stream in streams)


def test_what_has_ended_is_not_sent_again() -> None:
    pending, sent, streams = degraded()
    pending.take(TextBatch(0, [last_chunk(streams[0].rid, "a")]), NoTrace())
    pending.dispatched(0, [streams[0].rid])
    pending.lose(0, EngineError("gone"))
    assert len(sent) == 4


def test_a_name_is_the_callers_and_may_come_again_once_it_is_free() -> None:
    pending, sent = make_pending()
    named = [GenerateRequest("x", b"", SamplingParams()) for _ in range(2)]  # the n of one prompt
    streams = pending.hand_over(named, None)
    assert len({message.rid for message in sent}) == 2 and "x" not in {message.rid for message in sent}
    assert sorted(pending.ids_of("x")) == sorted(message.rid for message in sent)
    for stream in streams:
        with pytest.raises(ValueError, match="rid is 'x', and a request of that name is pending"):
            pending.hand_over(named[:1], None)
        pending.take(TextBatch(0, [last_chunk(stream.rid, "a")]), NoTrace())
        assert stream.result()["meta_info"]["id"] == "x"
    assert pending.ids_of("x") == []
    (again,) = pending.hand_over(named[:1], None)
    assert again.rid not in {stream.rid for stream in streams}
