"""What only the traces of all ranks together can say: how long a broadcast, or a call, waited for its slowest rank."""

from __future__ import annotations

from common.tracing import NOT_READ
from report.distribute import distribute_split
from report.trace import Part, ThreadTrace, Turn

US = 1000


def trace_of(*turns: list[tuple[str, int]], until: int, executes: bool = True) -> ThreadTrace:
    """Turns of (part, begin in us); each part lasts until the next begins, the last one until `until`."""
    thread = ThreadTrace("p", "loop", 1, 1, executes=executes)
    begins = [begin for turn in turns for _, begin in turn] + [until]
    places = iter(range(len(begins)))
    for turn in turns:
        parts = []
        for name, begin in turn:
            parts.append(Part(name, begin * US, begins[next(places) + 1] * US, NOT_READ))
        thread.turns.append(Turn(0, sampled=False, cpu=0, parts=parts))
    return thread


def test_a_broadcast_waits_for_the_last_that_enters() -> None:
    """Rank 1 waits since 20, rank 2 enters 30 us after rank 0 began to send at 110; all of it is there at 160."""
    rank0 = trace_of(
        [("other", 0), ("encode", 5), ("transport", 10), ("forward", 15)],
        [("other", 95), ("encode", 100), ("transport", 110), ("forward", 150)],
        until=300,
    )
    rank1 = trace_of(
        [("other", 0), ("idle", 2), ("transport", 12), ("decode", 14), ("forward", 18)],
        [("other", 19), ("transport", 20), ("transport", 120), ("decode", 155), ("forward", 156)],
        until=300,
    )
    rank2 = trace_of(
        [("other", 0), ("transport", 1), ("decode", 13), ("forward", 15)],
        [("other", 138), ("transport", 140), ("decode", 160), ("forward", 164)],
        until=300,
    )
    split = distribute_split([rank0, rank1, rank2], [2])
    assert split == {"encode": 10, "wait_for_slowest": 30, "transport": 20, "decode": 4}
    first = distribute_split([rank0, rank1, rank2], [1])
    assert first == {"encode": 5, "wait_for_slowest": 0, "transport": 4, "decode": 4}
    assert distribute_split([rank0], [2]) == {}


def test_a_window_changes_nothing() -> None:
    rank0 = trace_of(*[[("transport", 100 * n + 10), ("forward", 100 * n + 20)] for n in range(5)], until=500)
    rank1 = trace_of(*[[("transport", 100 * n + 15), ("forward", 100 * n + 40)] for n in range(5)], until=500)
    whole = distribute_split([rank0, rank1], [3, 4])
    window = [thread.within(200 * US, 400 * US) for thread in (rank0, rank1)]
    assert len(window[0].turns) == 3
    assert whole == distribute_split(window, [1, 2])
    assert whole == {"encode": 0, "wait_for_slowest": 5, "transport": 25, "decode": 0}


def test_several_broadcasts_of_a_turn_add_up() -> None:
    """rank0 scheduling with several decode steps: a follower's turn is a step."""
    rank0 = trace_of(
        [("encode", 0), ("transport", 4), ("forward", 10), ("encode", 50), ("transport", 56), ("forward", 60)],
        until=100,
    )
    rank1 = trace_of(
        [("transport", 2), ("decode", 11), ("forward", 12)],
        [("transport", 58), ("decode", 61), ("forward", 64)],
        until=100,
    )
    split = distribute_split([rank0, rank1], [1])
    assert split == {"encode": 4 + 6, "wait_for_slowest": 0 + 2, "transport": 7 + 3, "decode": 1 + 3}


def test_a_call_waits_for_the_last_rank_that_is_ready() -> None:
    """Called at 110; rank 1 still deals with the last call until 130. Arrived at 140, dealt with at 190, answered at
    200. What the router received meanwhile interrupts its transport, and is no call of its own."""
    router = trace_of(
        [("encode", 100), ("transport", 110), ("recv_requests", 120), ("transport", 125), ("decode", 200)],
        [("encode", 220)],
        until=300,
        executes=False,
    )
    rank0 = trace_of(
        [("decode", 10), ("forward", 20), ("wait_for_router", 60)],
        [("decode", 115), ("forward", 118), ("encode", 180), ("wait_for_router", 185)],
        until=300,
    )
    rank1 = trace_of(
        [("decode", 12), ("forward", 20), ("wait_for_router", 130)],
        [("decode", 140), ("forward", 145), ("encode", 188), ("wait_for_router", 190)],
        until=300,
    )
    split = distribute_split([router, rank0, rank1], [1])
    assert split == {"encode": 10 + 5, "wait_for_slowest": 20, "transport": 10 + 10, "decode": 20 + 5}
    assert distribute_split([router, rank0, rank1], [2]) == {}
