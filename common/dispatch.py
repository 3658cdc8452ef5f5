"""Which replica gets the next request. The dispatchers serve all three stages; they do no I/O.

`round_robin` takes turns. `shortest_queue` takes the replica with the least outstanding work (dispatched and not yet
finished), ties in rotation.

With era constants "queue" means what it did in 0.1.17 and 0.2.0: the undrained backlog, with ties to the lowest id. A
replica drains its queue before every step, however much it has to do. In a simulation with requests of 5 s, one
arriving each second, replica 0 of 4 gets 90% of them.
"""

from __future__ import annotations

from collections.abc import Callable


class BacklogDispatcher:
    """`backlogs()`: requests that each replica has been sent and has not taken in yet."""

    def __init__(self, method: str, replicas: int, backlogs: Callable[[], list[int]]) -> None:
        self.method = method
        self._replicas = replicas
        self._backlogs = backlogs
        self._next = 0

    def pick(self) -> int:
        if self.method == "shortest_queue":
            backlogs = self._backlogs()
            return backlogs.index(min(backlogs))
        replica = self._next
        self._next = (replica + 1) % self._replicas
        return replica

    def finished(self, replica: int, count: int) -> None:
        """What has ended is not looked at."""


class Dispatcher:
    def __init__(self, method: str, replicas: int) -> None:
        self.method = method
        self.outstanding = [0] * replicas
        self._next = 0

    def pick(self) -> int:
        """The replica for one more request, which counts as outstanding there until `finished` is told."""
        replicas = len(self.outstanding)
        replica = self._next
        if self.method == "shortest_queue":
            in_rotation = [(self._next + i) % replicas for i in range(replicas)]
            replica = min(in_rotation, key=lambda r: self.outstanding[r])
        self._next = (replica + 1) % replicas
        self.outstanding[replica] += 1
        return replica

    def finished(self, replica: int, count: int) -> None:
        self.outstanding[replica] -= count
