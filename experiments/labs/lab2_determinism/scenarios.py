"""What runs in the processes of `processes.py`."""

from __future__ import annotations

from typing import Any

from common.batch import BatchPlan
from common.digest import PlanDigest

from . import adapters
from .turns import make_turns, play


class EngineLog:
    """The engine's own digest, after each turn."""

    def __init__(self) -> None:
        self.digests: list[int] = []
        self._digest = PlanDigest()

    def add(self, plan: BatchPlan | None) -> None:
        if plan is not None:
            self._digest.update(plan)
        self.digests.append(self._digest.value)


class CountingLog:
    """Your log, and the number of its turns."""

    def __init__(self) -> None:
        self.turns = 0
        self._log = adapters.turn_log()

    def add(self, plan: BatchPlan | None) -> None:
        self._log.add(plan)
        self.turns += 1

    def digests(self) -> list[int]:
        return [self._log.digest(turn) for turn in range(1, self.turns + 1)]


def digests_of(seed: int, count: int) -> list[int]:
    """Of your log, when a rank plays a script."""
    log = CountingLog()
    play(make_turns(seed, count), log)
    return log.digests()


def digests_with_order(name: str, module: str, seed: int, count: int) -> list[int]:
    """The engine's, when a rank plays a script with an order of `repairs` or `suspects`."""
    log = EngineLog()
    play(make_turns(seed, count), log, _make(name, module).order)
    return log.digests


def _make(name: str, module: str) -> Any:
    made = {"Tenants": (), "Aging": (4,), "Lottery": (42,)}[name]
    return adapters.order_of(module, name, *made)
