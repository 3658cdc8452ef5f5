"""A process tree as a stage describes it, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProcessNode:
    """A process that a stage would start: its name, what it holds, the channels it listens on, its children."""

    name: str
    holds: str
    channels: tuple[str, ...] = ()
    children: list[ProcessNode] = field(default_factory=list)

    def walk(self) -> list[ProcessNode]:
        return [self, *(node for child in self.children for node in child.walk())]
