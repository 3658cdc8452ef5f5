"""Control calls: one reply from each replica, or an error that says what is missing."""

from __future__ import annotations

import threading

import pytest

from common.messages import ControlReply, FlushRequest
from evolution import control
from evolution.control import ControlCalls


class Failed(Exception):
    pass


class Stage:
    """Takes what is sent, and answers from another thread as it is told."""

    def __init__(self, replicas: int) -> None:
        self.failure: Exception | None = None
        self.sent: list[FlushRequest] = []
        self.arrived = threading.Event()
        self.calls = ControlCalls(replicas, threading.RLock(), self.take, self.raise_failure)

    def take(self, message: FlushRequest) -> None:
        self.sent.append(message)
        self.arrived.set()

    def raise_failure(self) -> None:
        if self.failure:
            raise self.failure

    def answer(self, *replicas: int) -> None:
        self.arrived.wait()
        for replica in replicas:
            self.calls.take(ControlReply(self.sent[-1].id, replica, True, {}))


def test_a_reply_from_each_replica() -> None:
    stage = Stage(3)
    threading.Thread(target=stage.answer, args=(2, 0, 1)).start()
    assert [reply.replica for reply in stage.calls.ask(FlushRequest)] == [2, 0, 1]
    assert stage.calls.next_id() == stage.sent[0].id + 1


def test_the_replicas_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "TIMEOUT", 0.1)
    stage = Stage(3)
    threading.Thread(target=stage.answer, args=(1,)).start()
    with pytest.raises(TimeoutError, match=r"no reply from replica\(s\) 0, 2"):
        stage.calls.ask(FlushRequest)
    stage.answer(0)  # too late: nobody waits for it any more
    stage.arrived.clear()
    threading.Thread(target=stage.answer, args=(0, 1, 2)).start()
    assert len(stage.calls.ask(FlushRequest)) == 3


def test_a_failure_ends_the_wait() -> None:
    stage = Stage(2)

    def fail() -> None:
        stage.answer(0)
        stage.failure = Failed("rank 1 is gone")
        stage.calls.wake()

    threading.Thread(target=fail).start()
    with pytest.raises(Failed, match="rank 1 is gone"):
        stage.calls.ask(FlushRequest)
    with pytest.raises(Failed):
        stage.calls.ask(FlushRequest)
    assert len(stage.sent) == 1


def test_a_lost_replica_is_not_waited_for() -> None:
    stage = Stage(3)

    def answer_and_lose() -> None:
        stage.answer(0, 2)
        stage.calls.lose(1)

    threading.Thread(target=answer_and_lose).start()
    assert [reply.replica for reply in stage.calls.ask(FlushRequest)] == [0, 2]
    assert not stage.calls.waiting
