"""Which replica gets the next request. One dispatcher serves all three stages; it does no I/O.

`round_robin` takes turns. `shortest_queue` takes the replica with the least outstanding work (dispatched and not yet
finished), ties in rotation. In 0.1.17 and 0.2.0 "queue" meant the undrained backlog, with ties to the lowest id. In a
simulation of that with requests of 5 s, one arriving each second, replica 0 of 4 gets 90% of them.
"""

from __future__ import annotations


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
