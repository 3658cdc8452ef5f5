"""What a thread did when: the parts of its turns, on the clock that all processes of a host share.

A turn is split into parts that exclude each other, so they add up to it: `part` ends the one before and begins the
next. What no part claims is `other`. Each has wall time (CLOCK_MONOTONIC) and CPU time of the thread.

```
recv_requests            drain the channel, decode
distribute               encode, transport, decode: how the turn's input reaches the other ranks; rpyc: the call
wait_for_router          of an rpyc rank between two calls of a busy router: transport, and what else the router does
process_input_requests   take the messages into the scheduler
get_next_batch_to_run    match, admit, batch
prepare, forward, sample what one execution is made of
process_batch_result     append, finish, cache
send_output              encode and send
idle                     waiting for work
pacing_sleep             an era's sleep between two turns
other                    the rest
```

When it is off, NO_TRACE takes the calls and does nothing. When it is on, a call is two clock reads and four numbers in
a buffer, which is written between two turns when it is full. Each thread of each process writes a file of its own;
`report.trace` joins them. On a GPU kernels run on while the thread goes on: what a forward takes shows in `sample`,
which waits for it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from array import array
from pathlib import Path
from typing import NamedTuple

import msgspec

PARTS = (
    "other",
    "idle",
    "pacing_sleep",
    "recv_requests",
    "encode",
    "transport",
    "decode",
    "wait_for_router",
    "process_input_requests",
    "get_next_batch_to_run",
    "prepare",
    "forward",
    "sample",
    "process_batch_result",
    "send_output",
    "tokenize",
    "detokenize",
)
# Of these `distribute` consists.
DISTRIBUTE = ("encode", "transport", "decode")
COUNTERS = ("messages", "bytes", "pickles", "copies", "collectives", "waiting", "running")
EVENTS = ("turn", "received", "finished")
CODES = {name: code for code, name in enumerate((*EVENTS, *PARTS, *COUNTERS))}
FLUSH_AT = 4 * 4096  # numbers


class Record(NamedTuple):
    """One line of a trace. `value`: of a counter, or the number in a request's id (`received`, `finished`)."""

    name: str
    wall_ns: int
    cpu_ns: int
    value: int


class NoTrace:
    """The trace when there is none."""

    on = False

    def turn(self) -> None:
        pass

    def part(self, name: str) -> None:
        pass

    def count(self, name: str, value: int) -> None:
        pass

    def request(self, event: str, rid: str) -> None:
        pass

    def close(self) -> None:
        pass


NO_TRACE = NoTrace()


class Trace:
    """One thread's. Not safe to share: each thread has its own."""

    on = True

    def __init__(self, folder: Path, process: str, thread: str) -> None:
        """Writes `folder/<pid>-<thread id>.trace`: a line of JSON that says who, then the records."""
        thread_id = threading.get_native_id()
        self._file = (folder / f"{os.getpid()}-{thread_id}.trace").open("wb")
        who = {"process": process, "thread": thread, "pid": os.getpid(), "tid": thread_id}
        self._file.write(msgspec.json.encode(who) + b"\n")
        self._file.flush()
        self._buffer = array("q")

    def turn(self) -> None:
        """A turn begins: the one before is over."""
        self._add(CODES["turn"], 0)
        if len(self._buffer) >= FLUSH_AT:
            self._flush()

    def part(self, name: str) -> None:
        """From here to the next call of `part` or `turn`, this is what the thread does."""
        self._add(CODES[name], 0)

    def count(self, name: str, value: int) -> None:
        """So many more (messages, bytes, ..), or so many now (waiting, running)."""
        self._add(CODES[name], value)

    def request(self, event: str, rid: str) -> None:
        """`received` or `finished` here; for the arrows between processes."""
        number = re.search(r"\d+$", rid)
        if number:
            self._add(CODES[event], int(number.group()))

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _add(self, code: int, value: int) -> None:
        self._buffer.extend((code, time.perf_counter_ns(), time.thread_time_ns(), value))

    def _flush(self) -> None:
        self._file.write(self._buffer.tobytes())
        self._file.flush()
        del self._buffer[:]


def make_trace(folder: str | None, process: str, thread: str = "loop") -> Trace | NoTrace:
    """For the calling thread; `folder` None: there is no tracing."""
    return Trace(Path(folder), process, thread) if folder else NO_TRACE


class CallerTraces:
    """Of the threads that call into main: each has its own, made when it first calls."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._local = threading.local()
        self._all: list[Trace | NoTrace] = []

    def own(self) -> Trace | NoTrace:
        """Under the caller's lock."""
        trace = getattr(self._local, "trace", None)
        if trace is None:
            trace = self._local.trace = make_trace(self._folder, "main", "caller")
            self._all.append(trace)
        return trace

    def close(self) -> None:
        for trace in self._all:
            trace.close()
        self._all.clear()


def read_trace(path: Path) -> tuple[dict[str, str | int], list[Record]]:
    """Who, and its records. A process that was killed leaves the records up to its last full buffer."""
    names = list(CODES)
    with path.open("rb") as file:
        who = msgspec.json.decode(file.readline())
        numbers = array("q")
        content = file.read()
    numbers.frombytes(content[: len(content) // 32 * 32])
    return who, [Record(names[code], *rest) for code, *rest in zip(*[iter(numbers)] * 4, strict=True)]
