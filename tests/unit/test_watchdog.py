"""The watchdog: what is a hang, what is none, and whose it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from common.processes import Failure
from common.processes.board import Board, Slot
from evolution.watchdog import Part, Standstills, Watchdog, blame, parts_of

TIMEOUT = 0.2


class Engine:
    """One replica of two ranks, a dispatcher and a detokenizer, as far as the board knows of them."""

    def __init__(self) -> None:
        self.board = Board()
        self.dispatcher = self.started("evo-dp-controller", 10)
        self.ranks = [self.started(f"evo-peer DP0 TP{rank}", 11 + rank) for rank in range(2)]
        self.detokenizer = self.started("evo-detokenizer", 13)
        self.dispatcher.is_dispatcher()
        self.detokenizer.is_detokenizer()
        for rank, slot in enumerate(self.ranks):
            slot.is_rank(0, rank)

    def started(self, name: str, pid: int) -> Slot:
        number = self.board.claim(name)
        self.board.pid_of(number, pid)
        return self.board.slot(number)

    def parts(self) -> dict[str, Part]:
        return {part.name: part for part in parts_of(self.board, self.board.lines())}

    def with_work(self) -> list[str]:
        return [name for name, part in self.parts().items() if part.has_work]

    def blamed(self, part: str, **states: str) -> Failure:
        """states: of processes by pid, as pid10="T"."""
        return blame(self.parts()[part], self.board.lines(), 2.0, lambda pid: states.get(f"pid{pid}", "S"))


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_who_has_work(engine: Engine) -> None:
    assert engine.with_work() == []
    engine.board.to_stage()
    assert engine.with_work() == ["the dispatcher"]
    engine.dispatcher.take(1)
    engine.board.to_replica(0)
    assert engine.with_work() == ["replica 0"]
    for rank in engine.ranks:
        rank.begin_turn(1)
    assert engine.with_work() == ["replica 0"]
    engine.ranks[0].end_turn(busy=False, batches=1)
    assert engine.with_work() == ["the detokenizer"]
    engine.board.detokenized(0)
    engine.detokenizer.take(1)
    assert engine.with_work() == []


def test_only_rank_0_says_whether_a_replica_is_busy(engine: Engine) -> None:
    """The last turn is over on rank 0 and not yet on rank 1: nobody waits for that."""
    engine.ranks[1].begin_turn(0)
    assert engine.with_work() == []


def part(moved: int, has_work: bool = True) -> list[Part]:
    return [Part("replica 0", 0, [], has_work, moved)]


def test_a_part_stands_still_as_long_as_it_has_work_and_moves_nothing_on() -> None:
    still = Standstills()
    assert still.look(part(1), 1.0) == {}
    assert still.look(part(1), 1.0) == {"replica 0": 1.0}
    assert still.look(part(1), 1.0) == {"replica 0": 2.0}
    assert still.look(part(2), 1.0) == {}
    assert still.look(part(2), 1.0) == {"replica 0": 1.0}
    assert still.look(part(2, has_work=False), 1.0) == {}
    assert still.look(part(2), 1.0) == {"replica 0": 1.0}


def test_a_stopped_process_is_named_before_those_that_wait_for_it(engine: Engine) -> None:
    assert engine.blamed("replica 0", pid12="T").name == "evo-peer DP0 TP1"
    assert "hangs: it is stopped" in engine.blamed("replica 0", pid12="T").cause
    assert "no turn was finished for 2.0 s" in engine.blamed("replica 0", pid12="t").cause


def test_a_process_above_the_ranks_may_be_what_does_not_hand_on_their_work(engine: Engine) -> None:
    assert engine.blamed("replica 0", pid10="T").name == "evo-dp-controller"


def test_a_process_that_is_gone_without_anybody_hearing_of_it(engine: Engine) -> None:
    failure = engine.blamed("replica 0", pid11="")
    assert (failure.name, failure.pid) == ("evo-peer DP0 TP0", 11) and failure.cause.startswith("is gone")


def test_the_rank_that_is_behind_is_named(engine: Engine) -> None:
    engine.ranks[0].beat()
    failure = engine.blamed("replica 0")
    assert failure.name == "evo-peer DP0 TP1"
    assert failure.cause.startswith("hangs: the other ranks of replica 0 are ahead and wait for it")


def test_ranks_that_stand_at_the_same_place_are_named_together(engine: Engine) -> None:
    assert "hangs, as does evo-peer DP0 TP1: no turn" in str(engine.blamed("replica 0"))
    engine.started("evo-peer DP0 TP2", 13).is_rank(0, 2)
    assert "hangs, as do evo-peer DP0 TP1, evo-peer DP0 TP2: no turn" in str(engine.blamed("replica 0"))


def test_another_replica_is_not_blamed(engine: Engine) -> None:
    engine.started("evo-peer DP1 TP0", 20).is_rank(1, 0)
    assert engine.blamed("replica 0", pid20="T").name == "evo-peer DP0 TP0"


class Watched:
    def __init__(self, board: Board) -> None:
        self.waited_for = False
        self.reports: list[tuple[Failure, int | None]] = []
        self.reported = threading.Event()
        self.watchdog = Watchdog(board, TIMEOUT, lambda: self.waited_for, self.take)

    def take(self, failure: Failure, replica: int | None) -> None:
        self.reports.append((failure, replica))
        self.waited_for = False
        self.reported.set()

    def work(self) -> None:
        self.waited_for = True
        self.watchdog.work_came()


@pytest.fixture
def watched(engine: Engine) -> Iterator[Watched]:
    watched = Watched(engine.board)
    watched.watchdog.start()
    yield watched
    watched.watchdog.stop()


def test_a_hang_is_reported_after_the_timeout(engine: Engine, watched: Watched) -> None:
    engine.board.to_replica(0)
    began = time.monotonic()
    watched.work()
    assert watched.reported.wait(5)
    assert TIMEOUT <= time.monotonic() - began < 2
    assert watched.reports[0][1] == 0


def test_as_long_as_something_moves_there_is_no_hang(engine: Engine, watched: Watched) -> None:
    engine.board.to_replica(0)
    watched.work()
    until = time.monotonic() + 3 * TIMEOUT
    while time.monotonic() < until:
        engine.ranks[0].beat()
        time.sleep(TIMEOUT / 10)
    assert not watched.reports


def test_nobody_waits_so_nothing_hangs(engine: Engine, watched: Watched) -> None:
    engine.board.to_replica(0)
    assert not watched.reported.wait(3 * TIMEOUT)


def test_a_lost_replica_is_not_watched(engine: Engine, watched: Watched) -> None:
    watched.watchdog.ignore_replica(0)
    engine.board.to_replica(0)
    watched.work()
    assert not watched.reported.wait(3 * TIMEOUT)
