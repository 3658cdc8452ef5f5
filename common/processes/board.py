"""The board: what every process of an engine says of itself while it works, in memory that all of them share.

One page of numbers per engine, which the main process makes and every process it starts, at whatever depth, is handed.
A process has a slot there, claimed by its parent before it exists. Nobody is woken by it: a process writes a number
when it does something, and only the watchdog (`evolution.watchdog`), while work is outstanding, reads them.

```
 header | messages handed to the stage | to replica 0 | to replica 1 | ..      written by whoever hands them over
        | batches detokenized, of replica 0 | of replica 1 | ..                  written by the detokenizer
 slot 0 | name | pid  parent  part  replica  rank  ready  steps  taken  busy  batches  stacks
 slot 1 | ..
```

1. Every number has one writer (a thread may share a slot with another, not a number). So there is nothing to lock.
2. The numbers are counts that only grow, or flags, and are compared seconds apart. No order between them matters, and
   so plain loads and stores do, on any architecture.
3. Something is outstanding where more was handed over than was taken, or where a rank says that it is busy.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from common.parallel.shared_memory import SharedBuffer

MOST_REPLICAS = 1024
MOST_PROCESSES = 2 * MOST_REPLICAS + 8  # a rank and a child of it at most, and those around
NAME_BYTES = 40
# int64 fields of a slot, after the name
PID, PARENT, PART, REPLICA, RANK, READY, STEPS, TAKEN, BUSY, BATCHES, STACKS = range(11)
SLOT_BYTES = NAME_BYTES + 8 * 11
CLAIMED, TO_STAGE, TO_REPLICA, DETOKENIZED = 0, 1, 2, 2 + MOST_REPLICAS  # of the header, the last two by replica
HEADER_CELLS = 2 + 2 * MOST_REPLICAS
NBYTES = 8 * HEADER_CELLS + MOST_PROCESSES * SLOT_BYTES

RANK_PART, DISPATCHER_PART, DETOKENIZER_PART = 1, 2, 3  # of a process's `part`; 0 is any other


class Slot:
    """A process's own line. The methods cost about 0.1 us each; a rank calls four of them in a turn."""

    def __init__(self, cells: memoryview | None = None) -> None:
        """Without `cells` it is nobody's, for a worker outside an engine."""
        self.cells = memoryview(bytearray(SLOT_BYTES - NAME_BYTES)).cast("q") if cells is None else cells

    def is_rank(self, replica: int, rank: int) -> None:
        self.cells[REPLICA], self.cells[RANK], self.cells[PART] = replica, rank, RANK_PART

    def is_dispatcher(self) -> None:
        self.cells[PART] = DISPATCHER_PART

    def is_detokenizer(self) -> None:
        self.cells[PART] = DETOKENIZER_PART

    def beat(self) -> None:
        """Something was done: a shard read, a forward begun or ended."""
        self.cells[STEPS] += 1

    def take(self, count: int) -> None:
        """So many messages have come in and are this process's to work on."""
        self.cells[TAKEN] += count

    def begin_turn(self, count: int) -> None:
        """A rank that plans: a turn begins, with so many messages."""
        self.cells[TAKEN] += count
        self.cells[BUSY] = 1

    def end_turn(self, busy: bool, batches: int) -> None:
        """`busy`: requests still wait or run; batches: for the detokenizer."""
        self.cells[BATCHES] += batches
        self.cells[BUSY] = busy


@dataclass(frozen=True)
class Line:
    """A slot as it was read. part: RANK_PART, DISPATCHER_PART, DETOKENIZER_PART, or 0."""

    name: str
    pid: int
    parent: int
    part: int
    replica: int
    rank: int
    ready: bool
    steps: int
    taken: int
    busy: bool
    batches: int
    stacks: int


class Board:
    """Can be pickled only as an argument of a process that is being spawned."""

    def __init__(self, buffer: SharedBuffer | None = None) -> None:
        self._buffer = buffer or SharedBuffer(NBYTES)
        self._header = memoryview(self._buffer.memory)[: 8 * HEADER_CELLS].cast("q")

    def __reduce__(self):
        return Board, (self._buffer,)

    def close(self) -> None:
        """The main process, when nobody looks any more: an engine leaves no file open."""
        self._header.release()
        self._buffer.close()

    # ------------------------------------------------------------------ who hands messages over

    def to_stage(self, count: int = 1) -> None:
        """The main process: so many messages go to the stage. Said before they are sent."""
        self._header[TO_STAGE] += count

    def to_replica(self, replica: int, count: int = 1) -> None:
        """Whoever dispatches (the main process, where there is one replica)."""
        self._header[TO_REPLICA + replica] += count

    def detokenized(self, replica: int) -> None:
        """The detokenizer: one more batch of this replica is on its way to the main process."""
        self._header[DETOKENIZED + replica] += 1

    # ------------------------------------------------------------------ slots

    def claim(self, name: str) -> int:
        """The parent, before it starts a child: the number of the child's slot. Several parents may claim at once."""
        fcntl.lockf(self._buffer, fcntl.LOCK_EX)
        try:
            number = self._header[CLAIMED]
            if number >= MOST_PROCESSES:
                raise RuntimeError(f"{name}: {number} processes are the most that an engine may start")
            self._header[CLAIMED] = number + 1
        finally:
            fcntl.lockf(self._buffer, fcntl.LOCK_UN)
        start = 8 * HEADER_CELLS + number * SLOT_BYTES
        label = name.encode()[:NAME_BYTES]
        self._buffer.memory[start : start + len(label)] = label
        self._cells(number)[PARENT] = os.getpid()
        return number

    def slot(self, number: int) -> Slot:
        return Slot(self._cells(number))

    def pid_of(self, number: int, pid: int) -> None:
        """The parent, once the child exists."""
        self._cells(number)[PID] = pid

    def _cells(self, number: int) -> memoryview:
        start = 8 * HEADER_CELLS + number * SLOT_BYTES
        return memoryview(self._buffer.memory)[start + NAME_BYTES : start + SLOT_BYTES].cast("q")

    # ------------------------------------------------------------------ who watches

    @property
    def handed_to_stage(self) -> int:
        return self._header[TO_STAGE]

    def handed_to(self, replica: int) -> int:
        return self._header[TO_REPLICA + replica]

    def detokenized_of(self, replica: int) -> int:
        return self._header[DETOKENIZED + replica]

    def lines(self) -> list[Line]:
        """Of every process that was started, in the order of their starts."""
        lines = []
        for number in range(self._header[CLAIMED]):
            start = 8 * HEADER_CELLS + number * SLOT_BYTES
            name = self._buffer.memory[start : start + NAME_BYTES].rstrip(b"\0").decode(errors="replace")
            cells = self._cells(number)
            if cells[PID]:
                lines.append(Line(name, *cells))
        return lines
