"""The traces of a run's threads as one file that Perfetto opens.

Format: Chrome trace events. A turn is a slice with its parts inside it; what is `idle` is left empty. A request is an
arrow: handed over in main, taken in by rank 0, finished in the detokenizer, and back in main.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from common.tracing import DISTRIBUTE, NOT_READ
from report.trace import WAITS, Part, ThreadTrace

RUN_BATCH = ("prepare", "forward", "sample")
GROUPS = {**dict.fromkeys(DISTRIBUTE, "distribute"), **dict.fromkeys(RUN_BATCH, "run_batch")}
LEAD_IN_NS = 1_000_000


def chrome_trace(threads: list[ThreadTrace]) -> dict[str, Any]:
    """The object to write as JSON. Times count from the moment before the first request; what was earlier, when the
    processes started one after the other, is left out."""
    first = [record.wall_ns for thread in threads for record in thread.requests]
    start = min(first or [part.begin for thread in threads for turn in thread.turns for part in turn.parts])
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
        shown = [part for part in turn.parts if part.begin >= start]
        # A wait in the middle of a turn would make its slice look busy: each stretch of work is one.
        for idle, stretch in groupby(shown, key=lambda part: part.name in WAITS):
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
    """`cpu_us` where the turn is a sampled one."""
    ts, dur = (parts[0].begin - start) / 1000, (parts[-1].end - parts[0].begin) / 1000
    known = parts[0].cpu != NOT_READ
    args = {"args": {"cpu_us": sum(part.cpu for part in parts) / 1000}} if known else {}
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, **args}


def _counters(thread: ThreadTrace, start: int) -> Iterator[dict[str, Any]]:
    if "TP0" not in thread.process:
        return  # every rank that plans has the same
    for record in thread.levels:
        if record.wall_ns >= start:
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
