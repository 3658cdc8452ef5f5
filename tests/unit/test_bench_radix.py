"""The statistics of the benches, the plain radix tree against ours, and `bench radix` on a small workload."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import pack_ids
from common.radix_cache import RadixCache
from experiments.bench import radix
from experiments.bench.original_radix import find_original, load_original
from experiments.bench.plain_radix import PlainRadixCache, shared_tokens

IDS = st.lists(st.integers(0, 2), max_size=9)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), IDS),
        st.tuples(st.just("match"), IDS),
        st.tuples(st.just("lock"), IDS),
        st.tuples(st.just("unlock"), st.integers(0, 99)),
        st.tuples(st.just("evict"), st.integers(0, 12)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200)
@given(CALLS)
def test_the_plain_tree_answers_as_ours_does(calls):
    ours, plain = RadixCache(), PlainRadixCache()
    locked: list[tuple] = []
    next_slot = 0
    for call, value in calls:
        if call == "insert":
            slots = np.arange(next_slot, next_slot + len(value), dtype=np.int32)
            next_slot += len(value)
            assert plain.insert(value, torch.tensor(slots)) == ours.insert(pack_ids(value), slots)
        elif call in ("match", "lock"):
            (found, node), (plain_found, plain_node) = ours.match_prefix(pack_ids(value)), plain.match_prefix(value)
            assert plain_found.tolist() == found.tolist()
            if call == "lock":
                ours.lock(node)
                plain.lock(plain_node)
                locked.append((node, plain_node))
        elif call == "unlock" and locked:
            node, plain_node = locked.pop(value % len(locked))
            ours.unlock(node)
            plain.unlock(plain_node)
        elif call == "evict":
            assert plain.evict(value).tolist() == ours.evict(value).tolist()
        assert plain.evictable_size == ours.evictable_size


def test_shared_tokens_counts_up_to_the_first_difference():
    assert shared_tokens([1, 2, 3], [1, 2, 4, 3]) == 2
    assert shared_tokens([1, 2], [1, 2, 4]) == 2
    assert shared_tokens([1, 2], [2, 2]) == 0


def test_the_workload_is_a_tree_of_three_levels():
    workload = radix.make_workload((2, 3, 4), (5, 6, 7), evictions=1)
    assert workload.requests.shape == workload.halves.shape == (24, 18)
    for end, count in ((5, 2), (11, 6), (18, 24)):
        assert len(np.unique(workload.requests[:, :end], axis=0)) == count
    assert (workload.requests[:, :11] == workload.halves[:, :11]).all()
    assert not np.isin(workload.halves[:, 11:], workload.requests).any()


def test_bench_radix_counts_and_compares():
    workload = radix.make_workload((2, 3, 4), (8, 8, 256), evictions=3)
    result = radix.measure(radix.make_arms(workload), workload, repeats=2)
    assert result["workload"] == {
        "requests": 24,
        "tokens": 272,
        "tokens_known_at_insert": 24 * 272 - result["workload"]["tokens_in_tree"],
        "tokens_matched": 24 * 272 + 24 * 16,
        "tokens_in_tree": 2 * 8 + 6 * 8 + 24 * 256,
        "tokens_evicted": 3 * 512,
        "tokens_left": 2 * 8 + 6 * 8 + 18 * 256,
    }
    assert all(len(result["samples"][step][arm]) == 2 for step in radix.STEPS for arm in ("ours", "plain"))
    assert set(result["verdicts"].values()) <= {"holds", "fails", "undecided"}
    radix.show(result)


def test_arms_that_disagree_are_not_compared():
    class Forgetful(PlainRadixCache):
        def insert(self, ids, slots):
            return super().insert(ids[:-1], slots[:-1])

    workload = radix.make_workload((1, 1, 3), (4, 4, 4), evictions=1)
    arms = radix.make_arms(workload)
    arms[1].make = Forgetful
    with pytest.raises(AssertionError, match="plain and ours gave different answers"):
        radix.measure(arms, workload, repeats=1)


def test_an_original_is_found_where_either_release_has_it(tmp_path):
    with pytest.raises(ValueError, match="--original .*: there is no sglang/srt/mem_cache/radix_cache.py"):
        find_original(str(tmp_path))
    for place, by_label in (("sglang/srt/managers/router", True), ("sglang/srt/mem_cache", False)):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "radix_cache.py").write_text(
            "from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache\nclass RadixCache(BasePrefixCache): 1\n"
        )
        path, keyed_by_label = find_original(str(tmp_path))
        assert (path.parent, keyed_by_label) == (folder, by_label)
        assert load_original(path).RadixCache
