"""RadixCache against a plain dictionary of prefixes, and by example."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.messages import pack_ids
from common.radix_cache import RadixCache, _shared_bytes


def slots(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def nodes_of(tree: RadixCache) -> list:
    found, todo = [], list(tree.root.children.values())
    while todo:
        found.append(todo.pop())
        todo += found[-1].children.values()
    return found


def test_match_is_the_longest_known_prefix():
    tree = RadixCache()
    assert tree.insert(pack_ids([1, 2, 3, 4]), slots(10, 11, 12, 13)) == 0
    assert tree.match_prefix(pack_ids([1, 2, 9]))[0].tolist() == [10, 11]
    assert tree.match_prefix(pack_ids([1, 2, 3, 4, 5]))[0].tolist() == [10, 11, 12, 13]
    assert tree.match_prefix(pack_ids([2, 3]))[0].tolist() == []
    assert tree.match_prefix(b"")[0].tolist() == []


def test_insert_reports_what_was_known_and_keeps_the_old_slots():
    tree = RadixCache()
    tree.insert(pack_ids([1, 2, 3]), slots(10, 11, 12))
    assert tree.insert(pack_ids([1, 2, 7, 8]), slots(20, 21, 22, 23)) == 2
    assert tree.insert(pack_ids([1, 2]), slots(30, 31)) == 2
    assert tree.match_prefix(pack_ids([1, 2, 7, 8]))[0].tolist() == [10, 11, 22, 23]
    assert tree.total == 5


def test_ids_that_share_bytes_but_no_token_are_not_shared():
    tree = RadixCache()
    tree.insert(pack_ids([1, 0x01020304, 5]), slots(0, 1, 2))
    assert tree.insert(pack_ids([1, 0x7F020304, 5]), slots(3, 4, 5)) == 1


def test_the_tree_keeps_its_own_copy_of_the_slots():
    tree = RadixCache()
    mine = slots(4, 5, 6)
    tree.insert(pack_ids([1, 2, 3]), mine)
    mine[:] = 0
    assert tree.match_prefix(pack_ids([1, 2, 3]))[0].tolist() == [4, 5, 6]


def test_a_lock_protects_the_matched_prefix_and_no_more():
    tree = RadixCache()
    tree.insert(pack_ids([1, 2, 3, 4]), slots(0, 1, 2, 3))
    _, node = tree.match_prefix(pack_ids([1, 2]))
    tree.lock(node)
    assert (tree.protected_size, tree.evictable_size) == (2, 2)
    assert tree.evict(4).tolist() == [2, 3]
    tree.unlock(node)
    assert tree.evict(4).tolist() == [0, 1]
    assert tree.total == 0


def test_a_lock_taken_before_a_split_can_be_undone_after_it():
    tree = RadixCache()
    tree.insert(pack_ids([1, 2, 3, 4]), slots(0, 1, 2, 3))
    _, node = tree.match_prefix(pack_ids([1, 2, 3, 4]))
    tree.lock(node)
    tree.insert(pack_ids([1, 2, 9]), slots(5, 6, 7))
    assert (tree.protected_size, tree.evictable_size) == (4, 1)
    tree.unlock(node)
    assert (tree.protected_size, tree.evictable_size) == (0, 5)


def test_unlocking_more_than_was_locked_raises():
    tree = RadixCache()
    tree.insert(pack_ids([1]), slots(0))
    _, node = tree.match_prefix(pack_ids([1]))
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(node)
    tree.lock(node)
    tree.unlock(node)
    with pytest.raises(ValueError, match="not locked"):
        tree.unlock(node)


def test_insert_wants_one_slot_for_each_token():
    with pytest.raises(ValueError, match="3 KV slots, got 2"):
        RadixCache().insert(pack_ids([1, 2, 3]), slots(0, 1))


def test_the_least_recently_used_leaf_goes_first_and_a_match_is_a_use():
    tree = RadixCache()
    for i in range(4):
        tree.insert(pack_ids([i]), slots(i))
    tree.match_prefix(pack_ids([0]))
    assert tree.evict(2).tolist() == [1, 2]
    tree.insert(pack_ids([3]), slots(9))
    assert tree.evict(1).tolist() == [0]


def test_evict_takes_whole_leaves_and_then_their_parents():
    tree = RadixCache()
    tree.insert(pack_ids([1, 2, 3]), slots(0, 1, 2))
    tree.insert(pack_ids([1, 2, 4, 5]), slots(0, 1, 3, 4))
    assert tree.evict(1).tolist() == [2]
    assert tree.evict(1).tolist() == [3, 4]
    assert tree.evict(1).tolist() == [0, 1]
    assert tree.evict(1).tolist() == []


def test_eviction_does_not_walk_the_tree():
    """The heap holds each leaf once however often it is touched, and evicting looks at few of them."""
    tree = RadixCache()
    for i in range(500):
        tree.insert(pack_ids([i, 1, 2]), np.arange(3 * i, 3 * i + 3, dtype=np.int32))
    for _ in range(20):
        for i in range(250, 500):
            tree.match_prefix(pack_ids([i, 1, 2]))
    assert len(tree._leaves) == 500
    before = [entry[0] for entry in sorted(tree._leaves)]
    tree.evict(3 * 10)
    assert [entry[0] for entry in sorted(tree._leaves)] == before[10:]


def test_reset_forgets_everything():
    tree = RadixCache()
    tree.insert(pack_ids([1, 2]), slots(0, 1))
    tree.lock(tree.match_prefix(pack_ids([1, 2]))[1])
    tree.reset()
    assert (tree.total, tree.evictable_size, tree.protected_size) == (0, 0, 0)
    assert tree.match_prefix(pack_ids([1, 2]))[0].tolist() == []
    assert tree.evict(5).tolist() == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), st.integers(0, 39), st.integers(1, 2**31 - 1))
def test_bisection_finds_the_first_difference(tokens, at, change):
    at %= len(tokens)
    other = list(tokens)
    other[at] ^= change
    key, before = pack_ids([tokens[0], *tokens]), pack_ids([99, tokens[0]])
    assert _shared_bytes(key, before + pack_ids(other), 4) == 4 * (at + 1)
    assert _shared_bytes(key, before + pack_ids(tokens[:at]), 4) == 4 * (at + 1)


class TreeAgainstDict(RuleBasedStateMachine):
    """The reference is a dictionary: known prefix (as a tuple of tokens) -> slot of its last token.

    `used` is the reference's LRU: the number of the last call that passed a prefix.
    """

    IDS = st.lists(st.integers(0, 2), max_size=9)

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixCache()
        self.known: dict[tuple[int, ...], int] = {}
        self.used: dict[tuple[int, ...], int] = {}
        self.locked: list[tuple[tuple[int, ...], object]] = []
        self.next_slot = 0
        self.now = 0

    def longest(self, ids: list[int]) -> int:
        n = 0
        while n < len(ids) and tuple(ids[: n + 1]) in self.known:
            n += 1
        self.now += 1
        for i in range(1, n + 1):
            self.used[tuple(ids[:i])] = self.now
        return n

    def slots_of(self, ids: list[int], n: int) -> list[int]:
        return [self.known[tuple(ids[: i + 1])] for i in range(n)]

    @rule(ids=IDS)
    def insert(self, ids):
        new = np.arange(self.next_slot, self.next_slot + len(ids), dtype=np.int32)
        self.next_slot += len(ids)
        n = self.longest(ids)
        assert self.tree.insert(pack_ids(ids), new) == n
        for i in range(n, len(ids)):
            self.known[tuple(ids[: i + 1])] = int(new[i])
            self.used[tuple(ids[: i + 1])] = self.now

    @rule(ids=IDS, lock=st.booleans())
    def match(self, ids, lock):
        n = self.longest(ids)
        found, node = self.tree.match_prefix(pack_ids(ids))
        assert found.tolist() == self.slots_of(ids, n)
        if lock:
            self.tree.lock(node)
            self.locked.append((tuple(ids[:n]), node))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data):
        _, node = self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1)))
        self.tree.unlock(node)

    @rule(n=st.integers(0, 12))
    def evict(self, n):
        evictable = self.tree.evictable_size
        leaves = {node.serial: len(node.slots) for node in nodes_of(self.tree)}
        gone = self.tree.evict(n).tolist()
        assert len(gone) >= min(n, evictable)
        remaining = {node.serial for node in nodes_of(self.tree)}
        dropped = [size for serial, size in leaves.items() if serial not in remaining]
        assert sum(dropped) == len(gone)
        assert not dropped or len(gone) - n < max(dropped)
        gone_keys = [key for key, slot in self.known.items() if slot in set(gone)]
        assert len(gone_keys) == len(gone)
        for key in gone_keys:
            del self.known[key]
        # Least recently used first: no prefix that is left, unlocked and a leaf, was used before one that went.
        left = [key for key in self.known if not self.has_child(key) and not self.is_locked(key)]
        if left and gone_keys:
            assert min(self.used[key] for key in left) >= max(self.used[key] for key in gone_keys)

    def has_child(self, key):
        return any(len(other) == len(key) + 1 and other[:-1] == key for other in self.known)

    def is_locked(self, key):
        return any(path[: len(key)] == key for path, _ in self.locked)

    @invariant()
    def sizes_are_right(self):
        assert self.tree.total == len(self.known)
        assert self.tree.protected_size == sum(self.is_locked(key) for key in self.known)
        nodes = nodes_of(self.tree)
        assert sum(len(node.slots) for node in nodes) == len(self.known)
        assert all(len(node.key) == 4 * len(node.slots) > 0 for node in nodes)
        assert all(node.lock_ref >= 0 for node in nodes)
        leaves = [node for node in nodes if not node.children and not node.lock_ref]
        queued = [entry[2] for entry in self.tree._leaves]
        assert len(set(map(id, queued))) == len(queued), "a node stands twice in the heap"
        assert {id(node) for node in leaves} <= set(map(id, queued))

    def teardown(self):
        for _, node in self.locked:
            self.tree.unlock(node)
        assert sorted(self.tree.evict(self.tree.total).tolist()) == sorted(self.known.values())


TreeAgainstDict.TestCase.settings = settings(deadline=None, max_examples=120, stateful_step_count=40)
TestTreeAgainstDict = TreeAgainstDict.TestCase
