"""The traces of a run's threads, and where their turns went: wall time, CPU time and what was counted, by part.

The wall time of a part and the CPU time of a turn are exact. How a turn's CPU time divides into its parts is known of
every SAMPLE_EVERY-th turn, and taken to be the same in the others. A prefill is another thing than a decode step, so
the turns with one divide by the sampled ones of their own; where none of a kind was sampled, by wall time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from common.tracing import COUNTERS, DISTRIBUTE, NOT_READ, PARTS, Record, read_trace

FIRST = ("main", "evo-router", "evo-controller-multi", "evo-dp-controller")
LEVELS = ("running", "waiting")
WAITS = ("idle", "pacing_sleep", "wait_for_router", "wait_for_forward", "wait_for_plan")
RUNS = ("forward", "wait_for_forward")  # what a turn that runs a batch has, on one thread or on two


@dataclass(frozen=True)
class Part:
    """One part of a turn, wall and CPU time in ns; `cpu` is NOT_READ where the turn was not sampled."""

    name: str
    begin: int
    end: int
    cpu: int

    @property
    def wall(self) -> int:
        return self.end - self.begin


@dataclass
class Turn:
    """`cpu_begin`: the thread's CPU clock at its begin, ns since the thread began; `cpu`: how much of it the turn took,
    NOT_READ when it did not end. `counts`: sums of what was counted in it; `distribute_counts`: of what was counted in
    those parts of it that `distribute` consists of."""

    cpu_begin: int
    sampled: bool
    cpu: int = NOT_READ
    parts: list[Part] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    distribute_counts: Counter[str] = field(default_factory=Counter)

    @property
    def begin(self) -> int:
        return self.parts[0].begin

    @property
    def ended(self) -> bool:
        return self.cpu != NOT_READ

    @property
    def prefills(self) -> bool:
        return self.counts["prefills"] > 0

    def has(self, name: str) -> bool:
        return any(part.name == name for part in self.parts)


def _before_the_first() -> list[Turn]:
    return [Turn(NOT_READ, sampled=False)]


@dataclass
class ThreadTrace:
    """`turns[0]` is what came before the first turn: it never ended. `plans`: this thread holds a scheduler, whose
    counters are a replica's; `executes`: it runs forwards, or another thread of its process does."""

    process: str
    thread: str
    pid: int
    tid: int
    turns: list[Turn] = field(default_factory=_before_the_first)
    levels: list[Record] = field(default_factory=list)
    requests: list[Record] = field(default_factory=list)
    plans: bool = False
    executes: bool = False

    def within(self, begin: int, end: int) -> ThreadTrace:
        """Only the turns, levels and requests that began in [begin, end], ns of `time.perf_counter_ns`, a clock that
        the processes of a host share."""

        def inside(records: list[Record]) -> list[Record]:
            return [record for record in records if begin <= record.wall_ns <= end]

        turns = _before_the_first() + [turn for turn in self.turns[1:] if begin <= turn.begin <= end]
        return dataclasses.replace(self, turns=turns, levels=inside(self.levels), requests=inside(self.requests))

    def cpu_at(self, moment: int) -> int | None:
        """The thread's CPU clock as last read by `moment`: ns since the thread began. None: it was not read by then."""
        last = None
        for turn in self.turns[1:]:
            if turn.begin > moment:
                break
            last = turn.cpu_begin
            if turn.sampled:
                last += sum(part.cpu for part in turn.parts if part.end <= moment)
        return last


def load(folder: Path) -> list[ThreadTrace]:
    """All threads of a run, in the order in which a viewer shows them. ValueError names a file that is no trace."""
    threads = [_thread(path) for path in folder.glob("*.trace")]
    return sorted(threads, key=shown_order)


def shown_order(thread: ThreadTrace) -> tuple[int, str, int]:
    """As a request goes: main, what hands it on, the ranks, the detokenizer."""
    name = thread.process
    role = FIRST.index(name) if name in FIRST else len(FIRST) + (name == "evo-detokenizer")
    return role, name, thread.tid


def _thread(path: Path) -> ThreadTrace:
    try:
        who, records = read_trace(path)
        trace = ThreadTrace(who["process"], who["thread"], who["pid"], who["tid"])
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is not a trace of this version: {type(error).__name__}: {error}") from None
    name = before = "other"  # the part that goes on, and the one before it
    current: Record | None = None
    for record in records:
        turn = trace.turns[-1]
        if record.name in LEVELS:
            trace.levels.append(record._replace(wall_ns=current.wall_ns if current else 0))
        elif record.name in COUNTERS:
            turn.counts[record.name] += record.value
            if name in DISTRIBUTE:
                turn.distribute_counts[record.name] += record.value
        elif record.name == "waited":
            if name in ("wait_for_router", "wait_for_plan"):
                name = "idle"
            else:
                _was_idle(turn)
        elif record.name in ("received", "finished"):
            trace.requests.append(record)
        else:
            if current is not None:
                cpu = record.cpu_ns - current.cpu_ns if turn.sampled else NOT_READ
                turn.parts.append(Part(name, current.wall_ns, record.wall_ns, cpu))
            if record.name == "turn":
                if len(trace.turns) > 1:
                    turn.cpu = record.cpu_ns - turn.cpu_begin
                trace.turns.append(Turn(record.cpu_ns, sampled=bool(record.value)))
            name, before = _next_part(record.name, name, before)
            current = record
    if len(trace.turns) > 1 and not trace.turns[-1].parts:  # what ended the last one
        trace.turns.pop()
    trace.plans = bool(trace.levels)
    trace.executes = any(turn.has(part) for turn in trace.turns for part in RUNS)
    return trace


def _was_idle(turn: Turn) -> None:
    """The wait for the broadcast of this turn, which is over, was for work."""
    for place, part in enumerate(turn.parts):
        if part.name == "transport":
            turn.parts[place] = dataclasses.replace(part, name="idle")
            return


def _next_part(event: str, name: str, before: str) -> tuple[str, str]:
    if event == "back":
        return before, name
    return "other" if event == "turn" else event, name


# ---------------------------------------------------------------------- where the turns went


def working_turns(thread: ThreadTrace) -> list[int]:
    """The numbers of the turns in which this thread ran a forward or waited for one; of a router's, in which it called
    the ranks."""
    signs = RUNS if thread.executes else ("transport",)
    return [n for n, turn in enumerate(thread.turns) if turn.ended and any(turn.has(sign) for sign in signs)]


def parts_of(thread: ThreadTrace, turns: list[int]) -> dict[str, tuple[int, int]]:
    """Wall and CPU time of each part over these turns, in ns; idle waits and sleeps among them. The CPU times add up to
    the turns' own; how they divide is told in the module's docstring. A turn that did not end is left out."""
    walls: Counter[str] = Counter()
    cpus: Counter[str] = Counter()
    for chosen in _kinds(thread, turns).values():
        walls.update(_sums(chosen, "wall"))
        estimate = _divided(chosen)
        total, took = sum(estimate.values()), sum(turn.cpu for turn in chosen)
        cpus.update({name: cpu * took / total for name, cpu in estimate.items() if total})
    return {name: (walls[name], round(cpus[name])) for name in PARTS if walls[name]}


def cpu_of(thread: ThreadTrace, turns: list[int]) -> int:
    """CPU time of these turns in ns, exact."""
    return sum(turn.cpu for chosen in _kinds(thread, turns).values() for turn in chosen)


def sampled_of(thread: ThreadTrace, turns: list[int]) -> dict[str, tuple[int, int]]:
    """How many of these turns there are, and how many of them were sampled, by kind: "prefill" (turns with one) and
    "other" (a router does not know, and has only these)."""
    kinds = _kinds(thread, turns).items()
    return {kind: (len(chosen), sum(turn.sampled for turn in chosen)) for kind, chosen in kinds if chosen}


def counts_of(thread: ThreadTrace, turns: list[int], distribute: bool = False) -> dict[str, int]:
    """The sums of what was counted in these turns; with `distribute` only what took their input to the ranks, and of
    rpyc the answers."""
    total: Counter[str] = Counter()
    for number in turns:
        turn = thread.turns[number]
        total.update(turn.distribute_counts if distribute else turn.counts)
    return dict(total)


def _kinds(thread: ThreadTrace, turns: list[int]) -> dict[str, list[Turn]]:
    kinds: dict[str, list[Turn]] = {"prefill": [], "other": []}
    for number in turns:
        turn = thread.turns[number]
        if turn.ended:
            kinds["prefill" if turn.prefills else "other"].append(turn)
    return kinds


def _divided(turns: list[Turn]) -> dict[str, float]:
    """The CPU time of each part of these turns, as far as the sampled ones tell: their mean. No thread uses more than
    the wall time, which takes the weight off a rare event that happened to be sampled."""
    walls = _sums(turns, "wall")
    sampled = [turn for turn in turns if turn.sampled]
    if not sampled:
        return {name: wall for name, wall in walls.items() if name not in WAITS}
    return {name: min(cpu * len(turns) / len(sampled), walls[name]) for name, cpu in _sums(sampled, "cpu").items()}


def _sums(turns: list[Turn], what: str) -> Counter[str]:
    """Of each part, "wall" or "cpu" time."""
    sums: Counter[str] = Counter()
    for turn in turns:
        for part in turn.parts:
            sums[part.name] += getattr(part, what)
    return sums
