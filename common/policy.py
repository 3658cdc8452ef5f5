"""The order in which waiting requests are considered for admission. Names and fallbacks are those of SGLang 0.4.0.

`fcfs`        as they came; retracted requests stand in front.
`lpm`         longest cached prefix first, so that what is in the cache is used before it is evicted; equal prefixes as
              they came. Each look matches every waiting prompt, so above 128 waiting requests lpm falls back to fcfs.
`dfs-weight`  depth first over the radix tree, of a node's children the one with most waiting requests below it first,
              of equal ones the one whose first request came first; those that end at a node follow those below it.
`random`      shuffled at each look, by a generator that every rank seeds alike.

lpm and dfs-weight are fcfs where no radix cache is kept.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from common.radix_cache import RadixCache, RadixNode
from common.request_state import RequestState

POLICIES = ("lpm", "random", "fcfs", "dfs-weight")
LPM_MOST_WAITING = 128


def order_waiting(
    waiting: Collection[RequestState], policy: str, tree: RadixCache | None, rng: random.Random
) -> Iterable[RequestState]:
    """`waiting` in the order of `policy`; `waiting` itself is not changed. lpm and dfs-weight touch the prefixes that
    they find; only `random` draws from rng."""
    if policy == "random":
        shuffled = list(waiting)
        rng.shuffle(shuffled)
        return shuffled
    if policy == "fcfs" or tree is None:
        return waiting
    if policy == "dfs-weight":
        return _by_weight(waiting, tree)
    if len(waiting) > LPM_MOST_WAITING:
        return waiting
    return sorted(waiting, key=lambda state: -len(tree.match_prefix(state.reusable_ids())[0]))


def _by_weight(waiting: Collection[RequestState], tree: RadixCache) -> list[RequestState]:
    ending: dict[RadixNode, list[RequestState]] = {}  # the requests whose known prefix ends at a node
    for state in waiting:
        ending.setdefault(tree.match_prefix(state.reusable_ids())[1], []).append(state)
    # Only nodes with requests below them, each list in the order in which the requests came. (A later match may have
    # split an edge, but never the end of an earlier one: the lower node of a split stays what it was.)
    weight: dict[RadixNode, int] = {tree.root: 0}
    children: dict[RadixNode, list[RadixNode]] = {tree.root: []}
    for node, states in ending.items():
        while node is not tree.root:
            if node not in weight:
                weight[node] = 0
                children.setdefault(node, [])
                children.setdefault(node.parent, []).append(node)
            weight[node] += len(states)
            node = node.parent
    ordered: list[RequestState] = []
    todo = [(tree.root, False)]  # a stack: the tree may be deeper than Python recurses
    while todo:
        node, below_done = todo.pop()
        if below_done:
            ordered += ending.get(node, ())
            continue
        todo.append((node, True))
        heaviest_first = sorted(children[node], key=lambda child: -weight[child])
        todo += [(child, False) for child in reversed(heaviest_first)]  # the first on top of the stack
    return ordered
