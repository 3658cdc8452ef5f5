"""Lab 2, tasks 2d to 2f: three orders of the waiting queue, to be made the same on every rank.

`suspects.py` has them as somebody wrote them who tried them on one rank. Each `order(waiting)` is called when requests
wait and more of them may be admitted; it returns all of them, the first to be admitted first, and leaves `waiting` as
it is. The calls are the same on all ranks as long as the ranks agree.
"""

from __future__ import annotations

from common.request_state import RequestState


class Tenants:
    """One request of each tenant in turn: first the oldest of each, then the second oldest of each that has two, ..

    Tenants come in the order of their oldest waiting request. `waiting` is in order of arrival, and `tenant_of` of
    `suspects.py` says whose a request is.
    """

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        raise NotImplementedError("lab2 task 2d: an order without a set")


class Aging:
    """Short prompts first, so that they do not wait for long ones; but whoever has waited long goes before all others.

    A request has waited long when it was there in `patience` calls of `order` before this one; whoever leaves the queue
    and comes back begins anew. Those who have waited long come in order of arrival, the others by `prompt_len`, and of
    equal length in order of arrival.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        raise NotImplementedError("lab2 task 2e: patience without a clock")


class Lottery:
    """A new shuffle at every call, so that nobody is always last. All ranks are given the same `seed`. Whoever draws
    from the `random` module elsewhere in the process neither changes the shuffles nor finds his own draws changed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        raise NotImplementedError("lab2 task 2f: lots that fall alike on every rank")
