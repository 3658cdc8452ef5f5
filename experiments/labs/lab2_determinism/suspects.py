"""Three orders of the waiting queue that work on one rank. What is wrong with them? See `repairs.py` for what they are
meant to do."""

from __future__ import annotations

import random
import time

from common.request_state import RequestState

PATIENCE = 0.05  # s


def tenant_of(state: RequestState) -> str:
    """`alice` of the request `alice-7`."""
    return state.rid.partition("-")[0]


class Tenants:
    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        tenants = {tenant_of(state) for state in waiting}
        queues = {tenant: [state for state in waiting if tenant_of(state) == tenant] for tenant in tenants}
        ordered: list[RequestState] = []
        while len(ordered) < len(waiting):
            ordered += [queue.pop(0) for queue in queues.values() if queue]
        return ordered


class Aging:
    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._since: dict[str, float] = {}

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        now = time.monotonic()
        self._since = {state.rid: self._since.get(state.rid, now) for state in waiting}
        old = [state for state in waiting if now - self._since[state.rid] >= PATIENCE]
        young = [state for state in waiting if now - self._since[state.rid] < PATIENCE]
        return old + sorted(young, key=lambda state: state.prompt_len)


class Lottery:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        shuffled = list(waiting)
        random.shuffle(shuffled)
        return shuffled
