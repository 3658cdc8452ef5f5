"""What processes tell each other about themselves: that they are ready, or why they ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# After the first sign of trouble, wait this long for other signs: a rank that was killed and a peer that lost its
# connection are noticed within milliseconds of each other, in either order.
FIRST_CAUSE_WINDOW = 0.1
STOP_TIMEOUT = 5.0


@dataclass(frozen=True)
class ReadyReport:
    """name, pid and whatever `info` a process gave when it became ready, and the same of its children.

    times: when it reached the steps of its start, in order, in seconds of the clock that all processes of the host
    share (time.monotonic): "spawned" by its parent, "running" code of ours, "imported" its entry point's modules, what
    it marked itself, and "ready".
    """

    name: str
    pid: int
    info: dict[str, Any]
    times: dict[str, float]
    children: list[ReadyReport] = field(default_factory=list)

    def walk(self) -> list[ReadyReport]:
        return [self, *(node for child in self.children for node in child.walk())]


@dataclass(frozen=True)
class Failure:
    """Why a process ended unasked. `severity` ranks causes: 0 signal, 1 exception, 2 lost a peer, 3 exit code only."""

    name: str
    pid: int
    cause: str
    severity: int
    when: float
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) {self.cause}"


class ProcessFailed(RuntimeError):
    """A child ended unasked. The message names the process that failed first and why."""

    def __init__(self, failure: Failure) -> None:
        text = str(failure)
        if failure.traceback:
            text += "\n" + failure.traceback.rstrip()
        super().__init__(text)
        self.failure = failure


class PeerLost(RuntimeError):
    """Raised by a process whose connection to another process broke: a consequence, never the first cause."""
