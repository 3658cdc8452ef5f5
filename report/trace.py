"""From the traces of a run's threads to one file that Perfetto opens, and to a table of where the turns went.

Format: Chrome trace events. A turn is a slice with its parts inside it; what is `idle` is left empty. A request is an
arrow: handed over in main, taken in by rank 0, finished in the detokenizer, and back in main.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from common.tracing import COUNTERS, DISTRIBUTE, EVENTS, PARTS, Record, read_trace

RUN_BATCH = ("prepare", "forward", "sample")
GROUPS = {**dict.fromkeys(DISTRIBUTE, "distribute"), **dict.fromkeys(RUN_BATCH, "run_batch")}
FIRST = ("main", "evo-router", "evo-controller-multi", "evo-dp-controller")
LEVELS = ("running", "waiting")
LEAD_IN_NS = 1_000_000
WAITS = ("idle", "pacing_sleep", "wait_for_router")


@dataclass(frozen=True)
class Part:
    """One part of a turn, wall and CPU time in ns."""

    name: str
    begin: int
    end: int
    cpu: int


@dataclass
class ThreadTrace:
    process: str
    thread: str
    pid: int
    tid: int
    turns: list[list[Part]] = field(default_factory=list)  # the first is what came before the first turn
    counts: list[tuple[int, Record]] = field(default_factory=list)  # with the number of the turn
    requests: list[Record] = field(default_factory=list)

    @property
    def plans(self) -> bool:
        """Whether this thread holds a scheduler: its counters are a replica's."""
        return any(record.name in LEVELS for _, record in self.counts)

    def within(self, begin: int, end: int) -> ThreadTrace:
        """Only the turns that begin between these two times of time.perf_counter_ns, and what belongs to them."""
        chosen = [n for n, turn in enumerate(self.turns) if n and turn and begin <= turn[0].begin <= end]
        place = {number: new for new, number in enumerate(chosen, 1)}
        return ThreadTrace(
            self.process,
            self.thread,
            self.pid,
            self.tid,
            [[], *(self.turns[number] for number in chosen)],
            [(place[number], record) for number, record in self.counts if number in place],
            [record for record in self.requests if begin <= record.wall_ns <= end],
        )


def load(folder: Path) -> list[ThreadTrace]:
    """All threads of a run, in the order in which a viewer shows them."""
    threads = [_thread(path) for path in folder.glob("*.trace")]
    return sorted(threads, key=shown_order)


def shown_order(thread: ThreadTrace) -> tuple[int, str, int]:
    """As a request goes: main, what hands it on, the ranks, the detokenizer."""
    name = thread.process
    role = FIRST.index(name) if name in FIRST else len(FIRST) + (name == "evo-detokenizer")
    return role, name, thread.tid


def _thread(path: Path) -> ThreadTrace:
    who, records = read_trace(path)
    trace = ThreadTrace(who["process"], who["thread"], who["pid"], who["tid"], [[]])
    current: Record | None = None
    for record in records:
        if record.name in COUNTERS:
            trace.counts.append((len(trace.turns) - 1, record))
            continue
        if record.name in EVENTS and record.name != "turn":
            trace.requests.append(record)
            continue
        if current is not None:
            name = "other" if current.name == "turn" else current.name
            trace.turns[-1].append(Part(name, current.wall_ns, record.wall_ns, record.cpu_ns - current.cpu_ns))
        if record.name == "turn":
            trace.turns.append([])
        current = record
    return trace


# ---------------------------------------------------------------------- for Perfetto


def chrome_trace(threads: list[ThreadTrace]) -> dict[str, Any]:
    """The object to write as JSON. Times count from the moment before the first request; what was earlier, when the
    processes started one after the other, is left out."""
    first = [record.wall_ns for thread in threads for record in thread.requests]
    start = min(first or [part.begin for thread in threads for turn in thread.turns for part in turn])
    start -= LEAD_IN_NS if first else 0
    events: list[dict[str, Any]] = []
    processes = list(dict.fromkeys((thread.pid, thread.process) for thread in threads))
    for place, (pid, name) in enumerate(processes):  # a viewer sorts by name, which the place leads
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{place} {name}"}})
    for thread in threads:
        where = {"pid": thread.pid, "tid": thread.tid}
        events.append({"ph": "M", **where, "name": "thread_name", "args": {"name": thread.thread}})
        events += [{**where, **event} for event in _slices(thread, start)]
        events += [{**where, **event} for event in _counters(thread, start)]
    events += _arrows(threads, start)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slices(thread: ThreadTrace, start: int) -> Iterator[dict[str, Any]]:
    for number, turn in enumerate(thread.turns):
        turn = [part for part in turn if part.begin >= start]
        # A wait in the middle of a turn would make its slice look busy: each stretch of work is one.
        for idle, stretch in groupby(turn, key=lambda part: part.name in WAITS):
            if idle:
                continue
            parts = list(stretch)
            yield _slice(f"turn {number}", parts, start)
            for group, members in groupby(parts, key=lambda part: GROUPS.get(part.name)):
                inside = list(members)
                if group:
                    yield _slice(group, inside, start)
                for part in inside:
                    yield _slice(part.name, [part], start)


def _slice(name: str, parts: list[Part], start: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "ts": (parts[0].begin - start) / 1000,
        "dur": (parts[-1].end - parts[0].begin) / 1000,
        "args": {"cpu_us": sum(part.cpu for part in parts) / 1000},
    }


def _counters(thread: ThreadTrace, start: int) -> Iterator[dict[str, Any]]:
    if "TP0" not in thread.process:
        return  # every rank that plans has the same
    for _, record in thread.counts:
        if record.name in LEVELS and record.wall_ns >= start:
            ts = (record.wall_ns - start) / 1000
            yield {"ph": "C", "name": "requests", "ts": ts, "args": {record.name: record.value}}


def _arrows(threads: list[ThreadTrace], start: int) -> list[dict[str, Any]]:
    """One chain per request, where all of its stations were traced."""
    stations: dict[int, list[tuple[int, ThreadTrace]]] = defaultdict(list)
    for thread in threads:
        if thread.plans and "TP0" not in thread.process:
            continue
        for record in thread.requests:
            stations[record.value].append((record.wall_ns, thread))
    events = []
    for number, chain in stations.items():
        chain.sort(key=lambda station: station[0])
        for place, (wall, thread) in enumerate(chain):
            phase = "s" if place == 0 else "f" if place == len(chain) - 1 else "t"
            event = {"ph": phase, "id": number, "name": "request", "cat": "request", "ts": (wall - start) / 1000}
            events.append({**event, "pid": thread.pid, "tid": thread.tid} | ({"bp": "e"} if phase == "f" else {}))
    return events


# ---------------------------------------------------------------------- where the turns went


def working_turns(thread: ThreadTrace) -> list[int]:
    """The numbers of the turns in which this thread ran a forward; of a router's, in which it called the ranks."""
    sign = "forward" if thread.plans else "transport"
    return [n for n, turn in enumerate(thread.turns) if n and any(part.name == sign for part in turn)]


def parts_of(thread: ThreadTrace, turns: list[int]) -> dict[str, tuple[int, int]]:
    """Wall and CPU time of each part over these turns, in ns; idle waits and sleeps among them."""
    total: dict[str, list[int]] = {name: [0, 0] for name in PARTS}
    for turn in turns:
        for part in thread.turns[turn]:
            total[part.name][0] += part.end - part.begin
            total[part.name][1] += part.cpu
    return {name: (wall, cpu) for name, (wall, cpu) in total.items() if wall}


def counts_of(thread: ThreadTrace, turns: list[int]) -> dict[str, int]:
    """The sums of what was counted in these turns."""
    chosen = set(turns)
    total: dict[str, int] = defaultdict(int)
    for turn, record in thread.counts:
        if turn in chosen and record.name not in LEVELS:
            total[record.name] += record.value
    return dict(total)
