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
        self._place[slots.astype(np.intp)] = -1  # numpy indexes with intp, and converts other ints far more slowly
        return slots

    def free(self, slots: np.ndarray) -> None:
        """Give slots (int32, [n]) back. ValueError, and no change, if one is out of range or free already."""
        n = len(slots)
        index = slots.astype(np.uint32).astype(np.intp)  # a negative slot becomes a very large one
        try:
            taken = self._place[index] < 0
        except IndexError:
            raise ValueError(f"KV slots to free must lie in 0..{self.size - 1}, got {slots}") from None
        if not taken.all():
            raise ValueError(f"KV slot {slots[taken.argmin()]} is free already; each slot is freed once")
        places = np.arange(self._top, self._top + n, dtype=np.int32)
        self._place[index] = places
        if self._place[index].tobytes() != places.tobytes():  # of two equal slots the later has overwritten the place
            self._place[index] = -1
            raise ValueError("a KV slot appears twice among those to free; each slot is freed once")
        self._stack[self._top : self._top + n] = slots
        self._top += n
