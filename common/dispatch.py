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
        self._lost: set[int] = set()

    def pick(self) -> int:
        in_rotation = _in_rotation(self._next, self._replicas, self._lost)
        if self.method == "shortest_queue":
            backlogs = self._backlogs()
            return min(sorted(in_rotation), key=lambda r: backlogs[r])
        replica = in_rotation[0]
        self._next = (replica + 1) % self._replicas
        return replica

    def lose(self, replica: int) -> None:
        """It is no more, and is not picked again."""
        self._lost.add(replica)

    def finished(self, replica: int, count: int) -> None:
        """What has ended is not looked at."""


class Dispatcher:
    def __init__(self, method: str, replicas: int) -> None:
        self.method = method
        self.outstanding = [0] * replicas
        self._next = 0
        self._lost: set[int] = set()

    def pick(self) -> int:
        """The replica for one more request, which counts as outstanding there until `finished` is told."""
        replicas = len(self.outstanding)
        in_rotation = _in_rotation(self._next, replicas, self._lost)
        replica = in_rotation[0]
        if self.method == "shortest_queue":
            replica = min(in_rotation, key=lambda r: self.outstanding[r])
        self._next = (replica + 1) % replicas
        self.outstanding[replica] += 1
        return replica

    def finished(self, replica: int, count: int) -> None:
        self.outstanding[replica] -= count

    def lose(self, replica: int) -> None:
        """It is no more, and is not picked again."""
        self._lost.add(replica)


def _in_rotation(first: int, replicas: int, lost: set[int]) -> list[int]:
    """Those that are left, from `first` on."""
    return [replica for i in range(replicas) if (replica := (first + i) % replicas) not in lost]
