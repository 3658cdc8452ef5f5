"""From a thread to the event loop."""

from __future__ import annotations

import asyncio
import threading

from evolution.serve.mailroom import Mailroom


def test_all_arrives_in_order_at_its_own_inbox() -> None:
    count, boxes = 2000, 8

    async def go() -> list[list[int]]:
        mailroom = Mailroom(asyncio.get_running_loop())
        inboxes = [mailroom.inbox() for _ in range(boxes)]

        def hand_in() -> None:
            for number in range(count):
                inboxes[number % boxes].put(number)

        async def read(inbox) -> list[int]:
            got: list[int] = []
            while len(got) < count // boxes:
                got += await inbox.get()
            return got

        thread = threading.Thread(target=hand_in)
        thread.start()
        return await asyncio.wait_for(asyncio.gather(*(read(inbox) for inbox in inboxes)), 10)

    for index, got in enumerate(asyncio.run(go())):
        assert got == list(range(index, count, boxes))


def test_what_comes_after_the_loops_end_is_nobodys() -> None:
    async def make() -> Mailroom:
        return Mailroom(asyncio.get_running_loop())

    mailroom = asyncio.run(make())
    mailroom.inbox().put(1)
