"""From the engine's receiver thread to the event loop: no thread waits for a request.

The receiver puts what a batch brings for many requests, one after the other. The first `put` wakes the loop, and the
loop then takes all that is there. Deliveries are paced by what they cost: after one to 64 streams the next comes 9.6 ms
later at the soonest, with all that came meanwhile, and after one to a single stream at once. So where tokens come
faster than that, a chunk holds several, and writing them leaves the scheduler its core.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

# Seconds between two deliveries, for each inbox that the first one woke. To write a chunk takes a third of it.
PACE = 150e-6


class AsyncInbox:
    """What the streams of one call put into it, to be awaited. Has a stream's `put`, for the receiver's thread."""

    def __init__(self, mailroom: Mailroom) -> None:
        self._mailroom = mailroom
        self._items: list[Any] = []
        self._waiter: asyncio.Future | None = None

    def put(self, item: Any) -> None:
        self._mailroom.hand_in(self, item)

    async def get(self) -> list[Any]:
        """All that has come since the last call, at least one. For one task at a time."""
        if not self._items:
            self._waiter = self._mailroom.loop.create_future()
            await self._waiter
        items, self._items = self._items, []
        return items

    def deliver(self, item: Any) -> bool:
        """On the loop; whether this wakes who waits."""
        self._items.append(item)
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_result(None)
        return True


class Mailroom:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[AsyncInbox, Any]] = deque()
        self._called = False
        self._not_before = 0.0  # of the loop's clock

    def inbox(self) -> AsyncInbox:
        return AsyncInbox(self)

    def hand_in(self, inbox: AsyncInbox, item: Any) -> None:
        """On any thread."""
        self._items.append((inbox, item))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                self.loop.call_soon_threadsafe(self._deliver_in_time)

    def _deliver_in_time(self) -> None:
        if self.loop.time() < self._not_before:
            self.loop.call_at(self._not_before, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        self._called = False  # before looking: what comes from now on calls again
        woken = 0
        while self._items:
            inbox, item = self._items.popleft()
            woken += inbox.deliver(item)
        self._not_before = self.loop.time() + PACE * woken
