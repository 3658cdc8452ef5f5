"""Lab 4, reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.messages import GenerateRequest, Request, StopRequest
from common.radix_cache import RadixCache

from .fleet import Rule
from .messages import Finished

# ---------------------------------------------------------------------- 1: the tie bug


def backlog_counts(requests: int, per_step: int, replicas: int) -> list[int]:
    whole, rest = divmod(requests, per_step)
    return [
        whole * ((per_step - replica + replicas - 1) // replicas) + max(0, (rest - replica + replicas - 1) // replicas)
        for replica in range(replicas)
    ]


class Rotation:
    """Those that are left, beginning behind the one that was picked last."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.next = 0
        self.lost: set[int] = set()

    def order(self) -> list[int]:
        turned = [(self.next + i) % self.replicas for i in range(self.replicas)]
        return [replica for replica in turned if replica not in self.lost]

    def picked(self, replica: int) -> int:
        self.next = (replica + 1) % self.replicas
        return replica


class RotatingBacklog:
    def __init__(self, replicas: int, backlogs: Callable[[], list[int]]) -> None:
        self._rotation = Rotation(replicas)
        self._backlogs = backlogs

    def pick(self, request: GenerateRequest) -> int:
        backlogs = self._backlogs()
        return self._rotation.picked(min(self._rotation.order(), key=lambda replica: backlogs[replica]))

    def finished(self, replica: int, rids: list[str]) -> None:
        pass

    def lose(self, replica: int) -> None:
        self._rotation.lost.add(replica)


# ---------------------------------------------------------------------- 2: outstanding work


class OutstandingTokens:
    def __init__(self, replicas: int) -> None:
        self.outstanding = [0] * replicas
        self.rotation = Rotation(replicas)
        self._tokens: dict[str, int] = {}

    def pick(self, request: GenerateRequest) -> int:
        return self.take(request, self.least(self.rotation.order()))

    def least(self, replicas: list[int]) -> int:
        return min(replicas, key=lambda replica: self.outstanding[replica])

    def take(self, request: GenerateRequest, replica: int) -> int:
        tokens = len(request.input_ids) // 4 + request.sampling.max_new_tokens
        self._tokens[request.rid] = tokens
        self.outstanding[replica] += tokens
        return self.rotation.picked(replica)

    def finished(self, replica: int, rids: list[str]) -> None:
        for rid in rids:
            self.outstanding[replica] -= self._tokens.pop(rid)

    def lose(self, replica: int) -> None:
        self.rotation.lost.add(replica)


def controller_turn(
    dispatcher: Rule,
    reports: list[Finished],
    messages: list[Request],
    send: Callable[[int, Request], None],
    alive: list[int],
) -> bool:
    for report in reports:
        dispatcher.finished(report.replica, report.rids)
    for message in messages:
        if isinstance(message, GenerateRequest):
            send(dispatcher.pick(message), message)
            continue
        for replica in alive:
            send(replica, message)
        if isinstance(message, StopRequest):
            return False
    return True


# ---------------------------------------------------------------------- 3: prefix-aware


class PrefixAware:
    def __init__(self, replicas: int, capacity: int, imbalance: int) -> None:
        self._load = OutstandingTokens(replicas)
        self._mirrors = [RadixCache() for _ in range(replicas)]
        self._capacity = capacity
        self._imbalance = imbalance

    @property
    def known_tokens(self) -> list[int]:
        return [mirror.total for mirror in self._mirrors]

    def pick(self, request: GenerateRequest) -> int:
        replica = self._load.take(request, self._load.least(self._candidates(request)))
        mirror = self._mirrors[replica]
        prompt = request.input_ids
        mirror.insert(prompt, np.zeros(len(prompt) // 4, dtype=np.int32))
        if mirror.total > self._capacity:
            mirror.evict(mirror.total - self._capacity)
        return replica

    def _candidates(self, request: GenerateRequest) -> list[int]:
        left = self._load.rotation.order()
        loads = [self._load.outstanding[replica] for replica in left]
        if max(loads) - min(loads) > self._imbalance:
            return left
        known = [len(self._mirrors[replica].match_prefix(request.input_ids)[0]) for replica in left]
        longest = max(known)
        if 2 * longest < len(request.input_ids) // 4:
            return left
        return [replica for replica, tokens in zip(left, known, strict=True) if tokens == longest]

    def finished(self, replica: int, rids: list[str]) -> None:
        self._load.finished(replica, rids)

    def lose(self, replica: int) -> None:
        self._load.lose(replica)
