"""The watchdog: while work is outstanding, is anything still being done? And if not, who holds it up?

A thread of the main process. It sleeps until there is work, and then looks at the board (`common.processes.board`) a
few times per timeout; what it looks at costs the others some 0.1 us a turn, and an idle engine is not woken at all.

Watched are the parts of an engine that can hold up work on their own: each replica (its ranks meet in every turn, so
they stand still together), the dispatcher, and the detokenizer. A part hangs when it had work, and moved nothing on, at
every look for as long as the timeout. Time in which the main process itself did not run does not count.

Who is named: a process of the engine that is gone or stopped (/proc says so), else the rank that is behind the others,
for those wait for it in a collective; where none is behind, the part's first process, with all that wait there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.args import EngineArgs
from common.processes import Board, Failure, name_this_thread
from common.processes.board import DETOKENIZER_PART, DISPATCHER_PART, RANK_PART, Line
from common.processes.stacks import GONE, STOPPED, process_state, read_stacks

logger = logging.getLogger(__name__)

LOOKS = 20  # per timeout
LONGEST_BREAK = 1.0  # s between two looks


def hang_limit(args: EngineArgs) -> float:
    """s without a finished turn after which the engine fails; 0 for never."""
    return args.era_hang_limit if args.supervision == "era" else args.watchdog_timeout


@dataclass(frozen=True)
class Part:
    """name: for a person. replica: which one it is, if one. moved: a count that grows with whatever it does."""

    name: str
    replica: int | None
    lines: list[Line]
    has_work: bool
    moved: int


def parts_of(board: Board, lines: list[Line]) -> list[Part]:
    parts = []
    ranks = [line for line in lines if line.part == RANK_PART]
    for first in (line for line in ranks if line.rank == 0):
        of_replica = [line for line in ranks if line.replica == first.replica]
        has_work = first.busy or board.handed_to(first.replica) > first.taken
        moved = sum(line.steps + line.taken + line.batches for line in of_replica)
        parts.append(Part(f"replica {first.replica}", first.replica, of_replica, has_work, moved))
    for line in lines:
        if line.part == DISPATCHER_PART:
            parts.append(Part("the dispatcher", None, [line], board.handed_to_stage > line.taken, line.taken))
        elif line.part == DETOKENIZER_PART:
            has_work = any(rank.batches > board.detokenized_of(rank.replica) for rank in ranks)
            parts.append(Part("the detokenizer", None, [line], has_work, line.taken))
    return parts


@dataclass
class _Standstill:
    moved: int
    seconds: float


class Standstills:
    """How long each part has had work and moved nothing on."""

    def __init__(self) -> None:
        self._known: dict[str, _Standstill] = {}

    def look(self, parts: list[Part], seconds: float) -> dict[str, float]:
        """Name of each part that stands still -> for how long, in s; `seconds` have passed since the last look."""
        for part in parts:
            before = self._known.get(part.name)
            if before is None or before.moved != part.moved or not part.has_work:
                self._known[part.name] = _Standstill(part.moved, 0.0)
            else:
                before.seconds += seconds
        return {name: still.seconds for name, still in self._known.items() if still.seconds}


def blame(part: Part, lines: list[Line], seconds: float, state_of: Callable[[int], str] = process_state) -> Failure:
    """Whose fault it is that this part stands still; `lines`: of all processes."""
    idle = f"no turn was finished for {seconds:.1f} s while work was outstanding"
    # Those of the part first; and a process above them may be what does not hand their work on.
    for line in [*part.lines, *(line for line in lines if line not in part.lines and not _of_other(line, part))]:
        state = state_of(line.pid)
        if state in GONE:
            return _hang(line, f"is gone, and {idle}")
        if state in STOPPED:
            return _hang(line, f"hangs: it is stopped (by SIGSTOP or a debugger), and {idle}")
    least = min(line.steps for line in part.lines)
    behind = [line for line in part.lines if line.steps == least]
    if len(behind) == len(part.lines):
        others = ", ".join(line.name for line in behind[1:])
        together = f", as {'does' if len(behind) == 2 else 'do'} {others}" if others else ""
        return _hang(behind[0], f"hangs{together}: {idle}")
    return _hang(behind[0], f"hangs: the other ranks of {part.name} are ahead and wait for it, and {idle}")


def _of_other(line: Line, part: Part) -> bool:
    """Whether a line is a rank of another part: what stands still there does not hold up this one."""
    return line.part == RANK_PART and line.replica != part.replica and part.replica is not None


def _hang(line: Line, cause: str) -> Failure:
    return Failure(line.name, line.pid, cause, 0, time.monotonic())


class Watchdog:
    """`work_came` whenever something is handed over. `outstanding()`: whether somebody waits for an answer.
    `report(failure, replica)`: of a hang, once for each part; replica None: where it is no replica's own."""

    def __init__(
        self,
        board: Board,
        timeout: float,
        outstanding: Callable[[], bool],
        report: Callable[[Failure, int | None], None],
    ) -> None:
        """timeout: s; 0 for never."""
        self._board = board
        self._timeout = timeout
        self._outstanding = outstanding
        self._report = report
        self._work = threading.Event()
        self._stop = threading.Event()
        self._ignored: set[str] = set()  # parts that were reported, or are no more
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        if self._timeout:
            self._thread.start()

    def work_came(self) -> None:
        if not self._work.is_set():
            self._work.set()

    def ignore_replica(self, replica: int) -> None:
        """It was lost."""
        self._ignored.add(f"replica {replica}")

    def stop(self) -> None:
        """Safe from the watchdog's own thread, too."""
        self._stop.set()
        self._work.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        name_this_thread("watchdog")
        pause = min(LONGEST_BREAK, self._timeout / LOOKS)
        while not self._stop.is_set():
            self._work.wait()
            self._work.clear()  # before looking: what comes from now on sets it again
            standstills = Standstills()
            while self._outstanding() and not self._stop.wait(pause):
                self._look(standstills, pause)

    def _look(self, standstills: Standstills, pause: float) -> None:
        lines = [line for line in self._board.lines() if not self._is_lost(line)]
        parts = {part.name: part for part in parts_of(self._board, lines) if part.name not in self._ignored}
        for name, seconds in standstills.look(list(parts.values()), pause).items():
            if seconds < self._timeout or name not in parts or self._stop.is_set():
                continue
            part = parts[name]
            failure = blame(part, lines, seconds)
            asked = lines if part.replica is None else [line for line in lines if not _of_other(line, part)]
            logger.error("%s; stacks of those that answer:\n%s", failure, read_stacks(asked))
            self._ignored.add(name)
            self._report(failure, part.replica)

    def _is_lost(self, line: Line) -> bool:
        return line.part == RANK_PART and f"replica {line.replica}" in self._ignored
