"""RadixCache: which KV slots hold the KV of which token prefixes, as a radix tree with LRU eviction.

An edge carries many tokens. Keys are int32 token ids as `bytes`, so that comparing an edge is one memcmp; a plain
Python tree that compares token by token takes 22-27 us to match 512 tokens where this one takes a few. Children
are keyed by their first token (4 bytes). Values are int32 slot arrays; a split makes two views of one array.

1. The tree owns the slots of its nodes. It never frees: `evict` hands them out.
2. A node is locked while a request uses its slots, and so are all nodes above it: lock counts never grow downwards.
   Hence a node that is not locked has no locked node below it, and all of `evictable_size` can be had.
3. Time is a counter of match and insert calls: ranks that make the same calls evict the same nodes.
4. `_leaves` holds at least every leaf that is not locked, once. An entry's stamp may be older than its node's; it
   is brought up to date when it comes to the top, so touching a node costs nothing and no call walks the tree.
"""

from __future__ import annotations

import heapq

import numpy as np

NO_SLOTS = np.empty(0, dtype=np.int32)


class RadixNode:
    """One edge and the node it leads to: `slots` ([n] int32) hold the KV of the n tokens in `key` (4 n bytes)."""

    __slots__ = ("children", "key", "lock_ref", "parent", "queued", "serial", "slots", "stamp")

    def __init__(self, parent: RadixNode | None, key: bytes, slots: np.ndarray, stamp: int, serial: int) -> None:
        self.parent = parent
        self.key = key
        self.slots = slots
        self.stamp = stamp  # of the last match or insert that passed here
        self.serial = serial  # order of creation: settles equal stamps
        self.children: dict[bytes, RadixNode] = {}
        self.lock_ref = 0
        self.queued = False  # has an entry in `_leaves`


class RadixCache:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, locks too; the slots are the caller's to free."""
        self.root = RadixNode(None, b"", NO_SLOTS, 0, 0)
        self.evictable_size = 0  # tokens that no lock protects
        self.protected_size = 0  # tokens under a lock
        self._now = 0
        self._serial = 0
        self._leaves: list[tuple[int, int, RadixNode]] = []

    def set_clock_back(self) -> None:
        """What is used from now on counts as older than all that was used before: as with a clock that is stepped."""
        self._now -= 1 << 40

    @property
    def total(self) -> int:
        """Tokens in the tree, each with one slot."""
        return self.evictable_size + self.protected_size

    def match_prefix(self, ids: bytes) -> tuple[np.ndarray, RadixNode]:
        """The slots ([m] int32) of the longest known prefix of `ids`, and the node where that prefix ends.

        An edge that matches in part is split, so that locking the node protects these m tokens and no others. The
        array may be the tree's own: it is not to be written to.
        """
        node, _ = self._descend(ids)
        if node.parent is None:
            return NO_SLOTS, node
        if node.parent.parent is None:
            return node.slots, node
        parts = []
        last = node
        while node.parent is not None:
            parts.append(node.slots)
            node = node.parent
        parts.reverse()
        return np.concatenate(parts), last

    def insert(self, ids: bytes, slots: np.ndarray) -> int:
        """Make `ids` known, `slots` ([n] int32, n = len(ids) / 4) holding their KV.

        Returns m, the number of leading tokens that were known before. The tree now owns slots[m:] (it keeps a
        copy of the array); slots[:m] stay the caller's, whether or not they are the tree's own.
        """
        if len(ids) != 4 * len(slots):
            raise ValueError(f"{len(ids)} bytes of token ids need {len(ids) // 4} KV slots, got {len(slots)}")
        node, position = self._descend(ids)
        if position < len(ids):
            known = position // 4
            leaf = self._new_node(node, ids[position:], slots[known:].copy())
            node.children[ids[position : position + 4]] = leaf
            self.evictable_size += len(leaf.slots)
            self._queue(leaf)
        return position // 4

    def lock(self, node: RadixNode) -> None:
        """Protect the prefix that ends at `node` from eviction; locks are counted."""
        while node.parent is not None:
            if node.lock_ref == 0:
                self.evictable_size -= len(node.slots)
                self.protected_size += len(node.slots)
            node.lock_ref += 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        """Undo one `lock(node)`. ValueError if there is none to undo."""
        if node.parent is not None and node.lock_ref == 0:
            raise ValueError("this radix node is not locked; unlock needs a lock before it")
        while node.parent is not None:
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self.evictable_size += len(node.slots)
                self.protected_size -= len(node.slots)
                if not node.children:
                    self._queue(node)
            node = node.parent

    def evict(self, n: int) -> np.ndarray:
        """Drop least recently used leaves, whole, until n tokens are gone or all that is left is locked.

        Returns the slots ([m] int32) they held. m exceeds n by less than the length of the last leaf dropped.
        """
        freed = []
        missing = n
        leaves = self._leaves
        while missing > 0 and leaves:
            stamp, serial, node = leaves[0]
            gone = node.children or node.lock_ref
            if not gone and stamp != node.stamp:
                heapq.heapreplace(leaves, (node.stamp, serial, node))
                continue
            heapq.heappop(leaves)
            node.queued = False
            if gone:
                continue
            parent = node.parent
            del parent.children[node.key[:4]]
            freed.append(node.slots)
            missing -= len(node.slots)
            self.evictable_size -= len(node.slots)
            if not parent.children and parent.lock_ref == 0 and parent is not self.root:
                self._queue(parent)
        return np.concatenate(freed) if freed else NO_SLOTS

    # ------------------------------------------------------------------ inside

    def _descend(self, ids: bytes) -> tuple[RadixNode, int]:
        """Follow `ids` down, touching what is passed: the node where they leave the tree, and the bytes matched."""
        self._now = now = self._now + 1
        node, position, end = self.root, 0, len(ids)
        while position < end:
            child = node.children.get(ids[position : position + 4])
            if child is None:
                break
            key = child.key
            if not ids.startswith(key, position):
                shared = _shared_bytes(key, ids, position)
                return self._split(child, shared), position + shared
            child.stamp = now
            position += len(key)
            node = child
        return node, position

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut the edge after `at` bytes; returns the new upper node, touched now. `node` itself stays the lower one,
        untouched, so that whoever locked it can unlock it."""
        upper = self._new_node(node.parent, node.key[:at], node.slots[: at // 4])
        upper.lock_ref = node.lock_ref
        upper.children[node.key[at : at + 4]] = node
        node.parent.children[node.key[:4]] = upper
        node.parent = upper
        node.key = node.key[at:]
        node.slots = node.slots[at // 4 :]
        return upper

    def _new_node(self, parent: RadixNode, key: bytes, slots: np.ndarray) -> RadixNode:
        self._serial += 1
        return RadixNode(parent, key, slots, self._now, self._serial)

    def _queue(self, node: RadixNode) -> None:
        if not node.queued:
            node.queued = True
            heapq.heappush(self._leaves, (node.stamp, node.serial, node))


def _shared_bytes(key: bytes, ids: bytes, position: int) -> int:
    """Bytes of whole tokens that `key` and `ids[position:]` share, given that the first token is shared and not all
    of `key` is. Bisection: a handful of memcmps."""
    same, end = 4, min(len(key), len(ids) - position)
    if ids.startswith(key[:end], position):
        return end
    while end - same > 4:  # key[:same] is shared, key[:end] is not
        middle = (same + end) // 8 * 4
        if key[same:middle] == ids[position + same : position + middle]:
            same = middle
        else:
            end = middle
    return same
