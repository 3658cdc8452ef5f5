from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.dispatch import BacklogDispatcher, Dispatcher


def test_round_robin_takes_turns_whatever_is_outstanding():
    dispatcher = Dispatcher("round_robin", 3)
    dispatcher.finished(1, 0)
    assert [dispatcher.pick() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_shortest_queue_breaks_ties_in_rotation():
    """100 short requests, one at a time, over 4 replicas: each gets 25, not replica 0 all of them."""
    dispatcher = Dispatcher("shortest_queue", 4)
    picked = []
    for _ in range(100):
        replica = dispatcher.pick()
        picked.append(replica)
        dispatcher.finished(replica, 1)
    assert [picked.count(replica) for replica in range(4)] == [25] * 4


def test_shortest_queue_counts_work_in_flight():
    dispatcher = Dispatcher("shortest_queue", 2)
    assert dispatcher.pick() == 0  # long: stays outstanding
    for _ in range(5):
        replica = dispatcher.pick()
        assert replica == 1
        dispatcher.finished(replica, 1)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4))
def test_shortest_queue_never_picks_a_busier_replica(finishes, replicas):
    dispatcher = Dispatcher("shortest_queue", replicas)
    for finish in finishes:
        least = min(dispatcher.outstanding)
        replica = dispatcher.pick()
        assert dispatcher.outstanding[replica] == least + 1
        done = finish % replicas
        if dispatcher.outstanding[done]:
            dispatcher.finished(done, 1)


@pytest.mark.parametrize("method", ["round_robin", "shortest_queue"])
def test_a_lost_replica_is_picked_no_more(method):
    for dispatcher in (Dispatcher(method, 3), BacklogDispatcher(method, 3, lambda: [0, 0, 0])):
        dispatcher.pick()
        dispatcher.lose(1)
        dispatcher.lose(0)
        assert {dispatcher.pick() for _ in range(5)} == {2}
