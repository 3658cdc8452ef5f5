"""KvCache: the KV slots of all requests: a pool, and a radix tree over it unless that is turned off.

Each slot is free, or the tree's, or one admitted request's, or late: free + tree + own + late = pool, at every turn.
"""

from __future__ import annotations

import numpy as np

from common.kv_pool import KvPool
from common.radix_cache import NO_SLOTS, RadixCache
from common.request_state import RequestState


class KvCache:
    def __init__(self, size: int, radix: bool) -> None:
        self.pool = KvPool(size)
        self.tree = RadixCache() if radix else None
        self._late: list[int] = []  # slots of requests that have left, which a decode step still writes

    @property
    def available(self) -> int:
        """Slots that `allocate` can give: free ones and what can be evicted."""
        return self.pool.available + self.evictable

    @property
    def evictable(self) -> int:
        return self.tree.evictable_size if self.tree else 0

    def allocate(self, n: int) -> np.ndarray:
        """n slots (int32, [n]), evicting only what is missing. RuntimeError if fewer are available: the scheduler
        asks for no more than `available`."""
        missing = n - self.pool.available
        if missing > 0 and self.tree:
            self.pool.free(self.tree.evict(missing))
        slots = self.pool.alloc(n)
        if slots is None:
            raise RuntimeError(f"{n} KV slots were planned for and {self.pool.available} can be had")
        return slots

    def enter(self, state: RequestState) -> None:
        """Lock the cached prefix of what `state` may reuse; its slots are the first of the request's."""
        prefix = NO_SLOTS
        if self.tree:
            prefix, state.node = self.tree.match_prefix(state.reusable_ids())
            self.tree.lock(state.node)
        if not len(state.slots):
            state.slots = np.empty(state.prompt_len + state.max_new, dtype=np.int32)
        state.kv_len = state.tree_len = len(prefix)
        state.slots[: len(prefix)] = prefix

    def extend(self, state: RequestState, n: int) -> np.ndarray:
        """Slots (int32, [n]) for the next n tokens of `state`, its own for now."""
        slots = self.allocate(n)
        state.slots[state.kv_len : state.kv_len + n] = slots
        state.kv_len += n
        return slots

    def share(self, state: RequestState) -> None:
        """Give the tree what the request has computed, so that others can use it while the request runs.

        If the tree already has some of it (the same prompt was prefilled twice in one batch), the request keeps its
        own copies until it ends, since executors hold slot tables that must not be remapped. It then gives nothing,
        and so locks nothing that it does not use: otherwise a lone request could hold its prompt twice and starve.
        """
        if not self.tree:
            return
        ids = state.ids_with_kv()
        known, _ = self.tree.match_prefix(ids)
        if len(known) > state.tree_len:
            return
        self.tree.insert(ids, state.slots[: state.kv_len])
        _, node = self.tree.match_prefix(ids)
        self.tree.lock(node)
        self.tree.unlock(state.node)
        state.node = node
        state.tree_len = state.kv_len

    def leave(self, state: RequestState, keep: bool) -> None:
        """The request ends or is retracted: all its KV goes to the tree (keep), or its own slots become free. If it was
        computed one step too far, that step's slot waits for `free_late`."""
        if state.is_ahead:
            state.kv_len -= 1
            self._late.append(state.slots[state.kv_len])
        own_end = state.kv_len
        if keep and self.tree:
            own_end = self.tree.insert(state.ids_with_kv(), state.slots[: state.kv_len])
        self.pool.free(state.slots[state.tree_len : own_end])
        if self.tree:
            self.tree.unlock(state.node)
        state.node = None
        state.kv_len = state.tree_len = 0

    def free_late(self) -> bool:
        """The decode step has been executed: whether that frees any slot."""
        if not self._late:
            return False
        self.pool.free(np.array(self._late, dtype=np.int32))
        self._late.clear()
        return True

    def flush(self) -> None:
        """Back to the state of a new cache. No request may be admitted."""
        self.pool.reset()
        if self.tree:
            self.tree.reset()
