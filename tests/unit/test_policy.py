"""The order of the waiting queue, on trees of any shape."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import pack_ids, unpack_ids
from common.policy import POLICIES, order_waiting
from common.radix_cache import RadixCache, RadixNode


@dataclass(eq=False)
class Waiting:
    name: int
    ids: bytes

    def reusable_ids(self) -> bytes:
        return self.ids


def tree_of(texts: list[list[int]]) -> RadixCache:
    tree = RadixCache()
    for text in texts:
        tree.insert(pack_ids(text), np.arange(len(text), dtype=np.int32))
    return tree


def queue_of(prompts: list[list[int]]) -> list[Waiting]:
    return [Waiting(name, pack_ids(prompt)) for name, prompt in enumerate(prompts)]


def names(order) -> list[int]:
    return [state.name for state in order]


def by_recursion(node: RadixNode, path: tuple[int, ...], ends: list[tuple[int, ...]]) -> list[int]:
    """ends[i]: the longest prefix of request i that the tree knows."""

    def below(child_path: tuple[int, ...]) -> list[int]:
        return [i for i, end in enumerate(ends) if end[: len(child_path)] == child_path]

    paths = {child: path + tuple(unpack_ids(child.key).tolist()) for child in node.children.values()}
    with_requests = [child for child in paths if below(paths[child])]
    order: list[int] = []
    for child in sorted(with_requests, key=lambda c: (-len(below(paths[c])), below(paths[c])[0])):
        order += by_recursion(child, paths[child], ends)
    return order + [i for i, end in enumerate(ends) if end == path]


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12)


@given(known=texts, prompts=texts)
@settings(deadline=None, max_examples=300)
def test_dfs_weight_is_what_its_recursive_definition_gives(known, prompts) -> None:
    tree = tree_of(known)
    got = names(order_waiting(queue_of(prompts), "dfs-weight", tree, random.Random(0)))
    ends = []
    for prompt in prompts:
        shared = [text[: i + 1] for text in known for i in range(len(text)) if text[: i + 1] == prompt[: i + 1]]
        ends.append(tuple(max(shared, key=len, default=[])))
    assert got == by_recursion(tree.root, (), ends)


def test_dfs_weight_takes_the_busiest_branch_first_and_the_deepest_in_it() -> None:
    tree = tree_of([[1, 1, 1], [1, 1, 2], [2, 2, 2]])
    prompts = [[9], [2, 2, 2], [1, 1, 2], [1, 1], [1, 1, 1], [1, 1, 1, 5]]
    assert names(order_waiting(queue_of(prompts), "dfs-weight", tree, random.Random(0))) == [4, 5, 2, 3, 1, 0]


def test_dfs_weight_on_a_tree_deeper_than_python_recurses() -> None:
    chain = list(range(3000))
    tree = tree_of([chain[:length] for length in range(1, 3001)])
    order = order_waiting(queue_of([chain[:10], chain, chain[:2000]]), "dfs-weight", tree, random.Random(0))
    assert names(order) == [1, 2, 0]


def test_random_is_a_shuffle_that_the_seed_decides() -> None:
    queue = queue_of([[i] for i in range(50)])
    rng, same, other = random.Random(3), random.Random(3), random.Random(4)
    first, second = (names(order_waiting(queue, "random", None, rng)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert [names(order_waiting(queue, "random", RadixCache(), same)) for _ in range(2)] == [first, second]
    assert names(order_waiting(queue, "random", None, other)) != first
    assert names(queue) == list(range(50)), "the queue itself was shuffled"


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "fcfs"])
def test_without_a_tree_requests_come_as_they_came_and_nothing_is_drawn(policy) -> None:
    rng = random.Random(0)
    state = rng.getstate()
    assert names(order_waiting(queue_of([[2], [1], [3]]), policy, None, rng)) == [0, 1, 2]
    assert names(order_waiting([], policy, tree_of([[1]]), rng)) == []
    assert rng.getstate() == state
    assert policy in POLICIES
