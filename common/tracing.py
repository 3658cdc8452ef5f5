"""What a thread did when: the parts of its turns, on the clock that all processes of a host share.

A turn is split into parts that exclude each other, so they add up to it: `part` ends the one before and begins the
next. What no part claims is `other`. Each has wall time (CLOCK_MONOTONIC) and CPU time of the thread.

```
recv_requests            drain the channel, decode
distribute               encode, transport, decode: how the turn's input reaches the other ranks; rpyc: the call
wait_for_router          of an rpyc rank between two calls of a busy router: transport, and what else the router does
wait_for_forward         of a loop that overlaps, for the result of the turn before
wait_for_plan            of the thread that runs the forwards of such a loop, for the next one, while requests run
process_input_requests   take the messages into the scheduler
get_next_batch_to_run    match, admit, batch
prepare, forward, sample what one execution is made of
process_batch_result     append, finish, cache
send_output              encode and send
idle                     waiting for work
pacing_sleep             an era's sleep between two turns
other                    the rest
```

What travels between processes is counted where it is sent, by the thread that sends it, in one sense for every
mechanism. So the sum over the threads of an engine counts everything once.

```
messages     handed to a mechanism, for one receiver each: a ZMQ message; an rpyc call, answer, callback or dropped
             reference; a broadcast once for each rank that receives it; what goes into a queue or a pipe
bytes        of these messages, as handed over: a broadcast's once for each rank that receives it. With what rpyc writes
             around a call's arguments; without compression, and without what sockets and gloo add
pickles      made: of a broadcast one; of an rpyc list by reference one for each rank that pulls it
copies       of the whole content that an era's encoding makes on purpose, beside the encoder's own output
collectives  broadcasts of the control plane, once for the replica: rank 0 counts them. A forward's are not among them
prefills     requests of a prefill
waiting, running   requests of a replica, as of now
```

When it is off, NO_TRACE takes the calls and does nothing. When it is on, a call reads the wall clock and adds four
numbers to a buffer, which is written between two turns when it is full. The thread's CPU clock is a system call, which
takes several times as long as all of that: it is read at the begin of every turn, so that the CPU time of a turn is
known exactly, and at each part of every SAMPLE_EVERY-th turn, from which `report.trace` says how that time divides.

Each thread of each process writes a file of its own; `report.trace` joins them. On a GPU kernels run on while the
thread goes on: what a forward takes shows in `sample`, which waits for it.
"""

from __future__ import annotations

import os
import re
import threading
from array import array
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
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
    "wait_for_forward",
    "wait_for_plan",
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
COUNTERS = ("messages", "bytes", "pickles", "copies", "collectives", "prefills", "waiting", "running")
EVENTS = ("turn", "back", "waited", "received", "finished")
CODES = {name: code for code, name in enumerate((*EVENTS, *PARTS, *COUNTERS))}
TURN, BACK, WAITED = CODES["turn"], CODES["back"], CODES["waited"]
NOT_READ = -1  # in a clock's place
# Has no factor in common with what comes round every so many turns: eras stream every 2nd or 8th step, and take 10
# steps a turn.
SAMPLE_EVERY = 7
FLUSH_AT = 4 * 1024  # numbers


class Record(NamedTuple):
    """One line of a trace. `wall_ns`: NOT_READ for a counter, which belongs to the part before it, and `waited`.
    `cpu_ns`: NOT_READ except in a `turn`, and the parts of a sampled one. `value`: of a counter, the number in a
    request's id (`received`, `finished`), or 1 for a turn that is sampled."""

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

    def back(self) -> None:
        pass

    def waited(self) -> None:
        pass

    def count(self, name: str, value: int) -> None:
        pass

    def sent(self, messages: int, nbytes: int, pickles: int) -> None:
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
        self._thread_id = thread_id
        self._buffer: list[int] = []
        self._add = self._buffer.extend
        self._turns = 0
        self._sampled = False

    def turn(self) -> None:
        """A turn begins: the one before is over."""
        self._sampled = self._turns % SAMPLE_EVERY == 0
        self._turns += 1
        self._add((TURN, perf_counter_ns(), thread_time_ns(), int(self._sampled)))
        if len(self._buffer) >= FLUSH_AT:
            self._flush()

    def part(self, name: str) -> None:
        """From here to the next call of `part`, `back` or `turn`, this is what the thread does."""
        self._add((CODES[name], perf_counter_ns(), thread_time_ns() if self._sampled else NOT_READ, 0))

    def back(self) -> None:
        """The part goes on that the last one has interrupted. For a task that runs while another waits."""
        self._add((BACK, perf_counter_ns(), thread_time_ns() if self._sampled else NOT_READ, 0))

    def waited(self) -> None:
        """It turns out that a wait was for work, and so `idle`: the wait for router or plan that goes on, or else this
        turn's first part in `transport`."""
        self._add((WAITED, NOT_READ, NOT_READ, 0))

    def count(self, name: str, value: int) -> None:
        """So many more (messages, bytes, ..), or so many now (waiting, running)."""
        self._add((CODES[name], NOT_READ, NOT_READ, value))

    def sent(self, messages: int, nbytes: int, pickles: int) -> None:
        """So many messages to other processes, the bytes of all of them, and the pickles made for them."""
        self.count("messages", messages)
        self.count("bytes", nbytes)
        if pickles:
            self.count("pickles", pickles)

    def request(self, event: str, rid: str) -> None:
        """`received` or `finished` here; for the arrows between processes."""
        number = re.search(r"\d+$", rid)
        if number:
            self._add((CODES[event], perf_counter_ns(), NOT_READ, int(number.group())))

    def close(self) -> None:
        """Ends the last turn, on the thread whose trace this is; another one cannot read its CPU clock."""
        if threading.get_native_id() == self._thread_id:
            self.turn()
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        self._file.write(array("q", self._buffer))
        self._file.flush()
        self._buffer.clear()


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
