import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.kv_pool import KvPool


def slots(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_lowest_slots_go_first_and_freed_ones_come_back():
    pool = KvPool(6)
    assert pool.alloc(4).tolist() == [0, 1, 2, 3]
    pool.free(slots(1, 2))
    assert pool.available == 4
    assert sorted(pool.alloc(4).tolist()) == [1, 2, 4, 5]
    assert pool.alloc(1) is None


def test_alloc_gives_int32_that_is_the_callers_own():
    pool = KvPool(4)
    mine = pool.alloc(2)
    assert mine.dtype == np.int32
    mine[:] = 3
    assert pool.alloc(2).tolist() == [2, 3]


def test_alloc_of_too_many_changes_nothing():
    pool = KvPool(3)
    assert pool.alloc(4) is None
    assert pool.available == 3
    assert pool.alloc(0).tolist() == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (slots(0, 0), "twice"),
        (slots(0, 3), "free already"),
        (slots(0, 4), "0..3"),
        (slots(-1, 0), "0..3"),
    ],
)
def test_a_wrong_free_raises_and_changes_nothing(bad, message):
    pool = KvPool(4)
    taken = pool.alloc(3)
    with pytest.raises(ValueError, match=message):
        pool.free(bad)
    assert pool.available == 1
    pool.free(taken)
    assert sorted(pool.alloc(4).tolist()) == [0, 1, 2, 3]


def test_reset_is_a_new_pool():
    pool = KvPool(5)
    pool.free(pool.alloc(3)[::-1])
    pool.reset()
    assert pool.alloc(5).tolist() == [0, 1, 2, 3, 4]


def test_a_pool_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        KvPool(0)


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.randoms(use_true_random=False))))
def test_a_slot_is_free_or_taken_never_both(size, steps):
    pool, taken = KvPool(size), []
    for is_alloc, n, random in steps:
        if is_alloc:
            got = pool.alloc(n)
            assert (got is None) == (n > size - len(taken))
            if got is not None:
                assert not set(got.tolist()) & set(taken)
                taken += got.tolist()
        else:
            random.shuffle(taken)
            given_back, taken = taken[:n], taken[n:]
            pool.free(np.array(given_back, dtype=np.int32))
        assert pool.available == size - len(taken)
        assert len(set(taken)) == len(taken)
