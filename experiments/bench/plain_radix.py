"""PlainRadixCache: a radix tree as one writes it first. The yardstick that `bench radix` holds RadixCache against.

Children are found by their first token, an edge is compared token by token in a Python loop, and each eviction walks
all nodes to find the leaves and heaps them by their last use, as SGLang's cache did (0.4.0; 0.1.5 too, which also
tried the edges one by one). Token ids are lists of ints, slots int32 tensors. The calls are those of
common.radix_cache.RadixCache and give the same answers.
"""

from __future__ import annotations

import heapq

import torch

NO_SLOTS = torch.empty(0, dtype=torch.int32)


class PlainNode:
    def __init__(
        self, parent: PlainNode | None, tokens: list[int], slots: torch.Tensor, used: int, serial: int
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.slots = slots
        self.used = used  # number of the last call that passed here
        self.serial = serial
        self.children: dict[int, PlainNode] = {}
        self.lock_ref = 0

    def __lt__(self, other: PlainNode) -> bool:
        if self.used == other.used:
            return self.serial < other.serial
        return self.used < other.used


class PlainRadixCache:
    def __init__(self) -> None:
        self.root = PlainNode(None, [], NO_SLOTS, 0, 0)
        self.evictable_size = 0
        self._calls = 0
        self._nodes = 0

    def match_prefix(self, ids: list[int]) -> tuple[torch.Tensor, PlainNode]:
        node, known = self._follow(ids)
        parts = []
        above = node
        while above is not self.root:
            parts.append(above.slots)
            above = above.parent
        parts.reverse()
        return (torch.cat(parts) if parts else NO_SLOTS), node

    def insert(self, ids: list[int], slots: torch.Tensor) -> int:
        node, known = self._follow(ids)
        if known < len(ids):
            node.children[ids[known]] = self._new_node(node, ids[known:], slots[known:].clone())
            self.evictable_size += len(ids) - known
        return known

    def lock(self, node: PlainNode) -> None:
        while node is not self.root:
            if node.lock_ref == 0:
                self.evictable_size -= len(node.slots)
            node.lock_ref += 1
            node = node.parent

    def unlock(self, node: PlainNode) -> None:
        while node is not self.root:
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self.evictable_size += len(node.slots)
            node = node.parent

    def evict(self, n: int) -> torch.Tensor:
        leaves = self._leaves()
        heapq.heapify(leaves)
        freed = []
        missing = n
        while missing > 0 and leaves:
            leaf = heapq.heappop(leaves)
            if leaf.lock_ref:
                continue
            parent = leaf.parent
            del parent.children[leaf.tokens[0]]
            freed.append(leaf.slots)
            missing -= len(leaf.slots)
            self.evictable_size -= len(leaf.slots)
            if not parent.children and parent is not self.root:
                heapq.heappush(leaves, parent)
        return torch.cat(freed) if freed else NO_SLOTS

    def _leaves(self) -> list[PlainNode]:
        leaves = []
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            if node.children:
                todo.extend(node.children.values())
            else:
                leaves.append(node)
        return leaves

    def _follow(self, ids: list[int]) -> tuple[PlainNode, int]:
        """The node where `ids` leave the tree, splitting an edge that matches in part, and the tokens matched."""
        self._calls += 1
        node, known = self.root, 0
        rest = ids
        while rest and rest[0] in node.children:
            child = node.children[rest[0]]
            shared = shared_tokens(child.tokens, rest)
            if shared < len(child.tokens):
                return self._split(child, shared), known + shared
            child.used = self._calls
            node = child
            known += shared
            rest = rest[shared:]
        return node, known

    def _split(self, node: PlainNode, at: int) -> PlainNode:
        upper = self._new_node(node.parent, node.tokens[:at], node.slots[:at])
        upper.lock_ref = node.lock_ref
        upper.parent.children[node.tokens[0]] = upper
        node.tokens, node.slots = node.tokens[at:], node.slots[at:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _new_node(self, parent: PlainNode, tokens: list[int], slots: torch.Tensor) -> PlainNode:
        self._nodes += 1
        return PlainNode(parent, tokens, slots, self._calls, self._nodes)


def shared_tokens(edge: list[int], ids: list[int]) -> int:
    count = 0
    for ours, theirs in zip(edge, ids, strict=False):
        if ours != theirs:
            return count
        count += 1
    return count
