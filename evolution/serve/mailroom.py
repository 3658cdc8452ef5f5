"""From the engine's receiver thread to the event loop: no thread waits for a request.

The receiver puts what a batch brings for many requests, one after the other. The first `put` wakes the loop, and the
loop then takes all that is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any


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

    def deliver(self, item: Any) -> None:
        """On the loop."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Mailroom:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[AsyncInbox, Any]] = deque()
        self._called = False

    def inbox(self) -> AsyncInbox:
        return AsyncInbox(self)

    def hand_in(self, inbox: AsyncInbox, item: Any) -> None:
        """On any thread."""
        self._items.append((inbox, item))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before looking: what comes from now on calls again
        while self._items:
            inbox, item = self._items.popleft()
            inbox.deliver(item)
