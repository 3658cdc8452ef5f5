"""T = 1 and D = 1: the model sits in the router, as it did in v0.1.5."""

from __future__ import annotations

import asyncio

from common.args import EngineArgs
from common.messages import Request, TurnOutput
from common.worker import Worker


class LocalModelClient:
    """The worker that a rank's process would hold, called on the router's loop: nothing else runs during a step."""

    def __init__(self, args: EngineArgs) -> None:
        self._worker = Worker(args, replica=0, rank=0, group=None)
        self.info = self._worker.info

    async def step(self, messages: list[Request]) -> TurnOutput:
        # One pass of the loop, so that the receive task runs between two turns.
        await asyncio.sleep(0)
        return self._worker.step(messages)

    def close(self) -> None:
        self._worker.close()
