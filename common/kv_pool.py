"""KvPool: which of the KV slots are free. The tensors themselves live with the model runner."""

from __future__ import annotations

import numpy as np


class KvPool:
    """A stack of free slots, ids 0 .. size - 1. alloc and free cost O(n) numpy work for n slots.

    The stack makes the answer a function of the calls alone, so ranks that make the same calls get the same slots.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a KV pool needs at least 1 slot, got {size}")
        self.size = size
        self.reset()

    @property
    def available(self) -> int:
        """Free slots."""
        return self._top

    def reset(self) -> None:
        """Every slot is free again, in the order of a new pool; whoever still holds slots must forget them."""
        self._top = self.size
        self._stack = np.arange(self.size - 1, -1, -1, dtype=np.int32)  # the top is the end: slot 0 goes first
        self._place = np.arange(self.size - 1, -1, -1, dtype=np.int32)  # slot -> its place in the stack, -1 if taken

    def alloc(self, n: int) -> np.ndarray | None:
        """n slots (int32, [n], the caller's own copy), or None if fewer are free."""
        if n > self._top:
            return None
        slots = self._stack[self._top - n : self._top][::-1].copy()
        self._top -= n
        self._place[slots] = -1
        return slots

    def free(self, slots: np.ndarray) -> None:
        """Give slots (int32, [n]) back. ValueError, and no change, if one is out of range or free already."""
        n = len(slots)
        if n == 0:
            return
        if slots.min() < 0 or slots.max() >= self.size:
            raise ValueError(f"KV slots to free must lie in 0..{self.size - 1}, got {slots.min()}..{slots.max()}")
        if self._place[slots].max() >= 0:
            raise ValueError(f"KV slot {slots[self._place[slots].argmax()]} is free already; each slot is freed once")
        places = np.arange(self._top, self._top + n, dtype=np.int32)
        self._place[slots] = places
        if not np.array_equal(self._place[slots], places):  # the later of two equal slots overwrote the place
            self._place[slots] = -1
            raise ValueError("a KV slot appears twice among those to free; each slot is freed once")
        self._stack[self._top : self._top + n] = slots
        self._top += n
