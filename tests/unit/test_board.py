"""The board: every process finds its own line, and whoever looks finds all of them."""

from __future__ import annotations

import os

import pytest

from common.processes.board import DETOKENIZER_PART, RANK_PART, Board, Slot


def started(board: Board, name: str, pid: int = 1) -> Slot:
    number = board.claim(name)
    board.pid_of(number, pid)
    return board.slot(number)


def test_what_a_process_says_is_read_by_who_looks() -> None:
    board = Board()
    rank, other = started(board, "evo-peer DP1 TP0", 7), started(board, "evo-detokenizer", 8)
    rank.is_rank(1, 0)
    other.is_detokenizer()
    rank.begin_turn(3)
    rank.beat()
    rank.beat()
    rank.end_turn(busy=True, batches=1)
    board.to_stage(3)
    board.to_replica(1, 3)
    board.detokenized(1)
    first, second = board.lines()
    assert (first.name, first.pid, first.parent, first.part) == ("evo-peer DP1 TP0", 7, os.getpid(), RANK_PART)
    assert (first.replica, first.rank, first.ready) == (1, 0, 0)
    assert (first.steps, first.taken, first.busy, first.batches) == (2, 3, 1, 1)
    assert (second.name, second.part, second.taken) == ("evo-detokenizer", DETOKENIZER_PART, 0)
    assert (board.handed_to_stage, board.handed_to(0), board.handed_to(1), board.detokenized_of(1)) == (3, 0, 3, 1)


def test_a_turn_that_left_nothing_to_do() -> None:
    board = Board()
    rank = started(board, "evo-peer TP0")
    rank.begin_turn(1)
    assert board.lines()[0].busy
    rank.end_turn(busy=False, batches=0)
    assert not board.lines()[0].busy


def test_a_child_that_is_not_there_yet_has_no_line() -> None:
    board = Board()
    board.claim("evo-peer TP0")
    assert board.lines() == []


def test_several_parents_claim_at_once() -> None:
    board = Board()
    for _ in range(4):
        if os.fork() == 0:
            for index in range(50):
                board.pid_of(board.claim(f"evo-{os.getpid()} {index}"), os.getpid())
            os._exit(0)
    for _ in range(4):
        os.wait()
    names = [line.name for line in board.lines()]
    assert len(names) == len(set(names)) == 200


def test_a_long_name_is_cut() -> None:
    board = Board()
    started(board, "evo-" + "x" * 100)
    started(board, "evo-next")
    first, second = board.lines()
    assert len(first.name) == 40 and second.name == "evo-next"


def test_more_processes_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.processes.board.MOST_PROCESSES", 1)
    board = Board()
    board.claim("evo-one")
    with pytest.raises(RuntimeError, match="evo-two: 1 processes are the most"):
        board.claim("evo-two")


def test_a_slot_outside_an_engine_is_nobodys() -> None:
    slot = Slot()
    slot.begin_turn(1)
    slot.beat()
    slot.end_turn(False, 0)
