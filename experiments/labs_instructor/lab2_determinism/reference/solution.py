"""Lab 2, tasks 2a to 2c: digests of plans, and the turn where ranks part. The reference."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from common.batch import BatchPlan
from common.messages import Request

DIGEST_BYTES = 8


class TurnLog:
    """What a rank has planned so far, as one number for each turn.

    The number of a turn depends on every field of every plan up to that turn, and on their order, and on nothing else:
    two ranks that have planned the same have the same number, in whatever process they live; and once they have
    planned differently their numbers stay different, though they may plan the same again.
    """

    def __init__(self) -> None:
        self.chain = hashlib.sha256()
        self.numbers: list[int] = []

    def add(self, plan: BatchPlan | None) -> None:
        """The plan of the next turn; None: there was nothing to run. The first turn has number 1."""
        # msgpack says where each plan ends, so that two of them joined are never a third.
        self.chain.update(msgspec.msgpack.encode(plan))
        self.numbers.append(int.from_bytes(self.chain.digest()[:DIGEST_BYTES], "little"))

    def digest(self, turn: int) -> int:
        """0 <= digest < 2 ** 64, of the turns 1 to `turn`."""
        return self.numbers[turn - 1]


class Divergence(NamedTuple):
    """turn: the first in which not all ranks planned alike. ranks: those that planned otherwise than rank 0."""

    turn: int
    ranks: list[int]


def first_divergence(ask: Callable[[int, int], int], ranks: int, turns: int) -> Divergence | None:
    """Find the first turn in which `ranks` ranks differ; None if they have not differed in `turns` turns.

    ask(rank, turn) gives a rank's running digest after that turn, turns counting from 1. Each call is a message to that
    rank: make at most ranks * (log2(turns) + 2) of them.
    """

    def parted(turn: int) -> list[int]:
        expected = ask(0, turn)
        return [rank for rank in range(1, ranks) if ask(rank, turn) != expected]

    agreed, differing = 0, turns  # the last turn known to be alike, and one known to differ
    found = parted(turns)
    if not found:
        return None
    while differing - agreed > 1:
        middle = (agreed + differing) // 2
        others = parted(middle)
        if others:
            differing, found = middle, others
        else:
            agreed = middle
    return Divergence(differing, found)


def late(turns: list[list[Request]], turn: int) -> list[list[Request]]:
    """What a rank gets that is told what arrived in turn number `turn` (from 1) one turn later.

    It gets the same messages in the same order, none twice and none lost; `turns` itself is not changed. Where the next
    turn has messages of its own, the late ones come before them. `turn` may be the last one.
    """
    before, delayed, after = turns[: turn - 1], turns[turn - 1], turns[turn:]
    following = after[0] if after else []
    return [*before, [], [*delayed, *following], *after[1:]]
