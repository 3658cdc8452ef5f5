"""Which replicas are left, with `--on-replica-failure degrade`, and who failed in those that are not."""

from __future__ import annotations

import contextlib
import os
import signal

from common.args import EngineArgs
from common.messages import LoadReport, ReplicaLost
from common.processes import Board, Failure
from common.processes.board import RANK_PART
from evolution.control import ControlCalls
from evolution.pending import EngineError, PendingRequests


class Replicas:
    """`lose` on the receiver's thread; `kill_hanging` on the watchdog's."""

    def __init__(
        self, args: EngineArgs, board: Board, pending: PendingRequests, calls: ControlCalls, load: dict[int, LoadReport]
    ) -> None:
        self.alive = list(range(args.dp_size))
        self.cause = ""  # of the first that was lost
        self._degrades = args.on_replica_failure == "degrade"
        self._board = board
        self._pending = pending
        self._calls = calls
        self._load = load
        self._hangs: dict[int, Failure] = {}

    def can_lose(self, replica: int | None) -> bool:
        """Whether the engine goes on without it."""
        return self._degrades and replica is not None and len(self.alive) > 1

    def kill_hanging(self, replica: int, failure: Failure) -> None:
        """The dispatcher hears of the deaths, and has it taken out as any other replica that failed."""
        self._hangs[replica] = failure
        for line in self._board.lines():
            if line.part == RANK_PART and line.replica == replica:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(line.pid, signal.SIGKILL)

    def lose(self, lost: ReplicaLost) -> None:
        cause = str(self._hangs.get(lost.replica, lost.cause))
        self.alive = [replica for replica in self.alive if replica != lost.replica]
        self.cause = self.cause or cause
        self._load.pop(lost.replica, None)
        self._calls.lose(lost.replica)
        self._pending.lose(lost.replica, EngineError(f"replica {lost.replica} was lost: {cause}"))
