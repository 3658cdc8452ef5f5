"""How an engine is: what `Engine.health()` gives."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, frozen=True):
    """ok: it serves. cause: the process that failed first, and why; of the first replica lost, where the others go on;
    "" when nothing has failed. replicas_alive: their numbers; replicas: how many were started."""

    ok: bool
    cause: str
    replicas_alive: list[int]
    replicas: int

    @property
    def degraded(self) -> bool:
        return self.ok and len(self.replicas_alive) < self.replicas
