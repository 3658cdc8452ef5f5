"""Lab 2, tasks 2d to 2f: three orders of the waiting queue. The reference.

`suspects.py` has them as somebody wrote them who tried them on one rank. Each `order(waiting)` is called when requests
wait and more of them may be admitted; it returns all of them, the first to be admitted first, and leaves `waiting` as
it is. The calls are the same on all ranks as long as the ranks agree.
"""

from __future__ import annotations

import random

from common.request_state import RequestState

from .suspects import tenant_of


class Tenants:
    """One request of each tenant in turn: first the oldest of each, then the second oldest of each that has two, ..

    Tenants come in the order of their oldest waiting request. `waiting` is in order of arrival, and `tenant_of` of
    `suspects.py` says whose a request is.
    """

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        queues: dict[str, list[RequestState]] = {}  # a dict keeps the order in which its keys came
        for state in waiting:
            queues.setdefault(tenant_of(state), []).append(state)
        rounds = max(map(len, queues.values()), default=0)
        return [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]


class Aging:
    """Short prompts first, so that they do not wait for long ones; but whoever has waited long goes before all others.

    A request has waited long when it was there in `patience` calls of `order` before this one; whoever leaves the queue
    and comes back begins anew. Those who have waited long come in order of arrival, the others by `prompt_len`, and of
    equal length in order of arrival.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.calls: dict[str, int] = {}

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        seen = {state.rid: self.calls.get(state.rid, 0) for state in waiting}
        self.calls = {rid: calls + 1 for rid, calls in seen.items()}
        patient = [state for state in waiting if seen[state.rid] >= self.patience]
        fresh = [state for state in waiting if seen[state.rid] < self.patience]
        return patient + sorted(fresh, key=lambda one: one.prompt_len)


class Lottery:
    """A new shuffle at every call, so that nobody is always last. All ranks are given the same `seed`. Whoever draws
    from the `random` module elsewhere in the process neither changes the shuffles nor finds his own draws changed."""

    def __init__(self, seed: int) -> None:
        self.lots = random.Random(seed)

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        return self.lots.sample(waiting, len(waiting))
