"""What `bench distribute` reads from the traces of a run: how long the input of a turn took to reach every rank.

All times are on the monotonic clock that the processes of a host share.

Broadcast and peer: rank 0's encoding, and from the moment it sends and the last rank has come until the last follower
has the list. How long rank 0 had waited for that moment is kept apart: a lock-step collective charges everyone for the
slowest rank, and what made that rank late is its own turn, not the mechanism. In the mechanism's arm the followers
always come first.

rpyc: a call goes out (from the router's beginning to encode until the last rank has its argument) and comes back (from
the moment the last rank has its result until the router has rank 0's as an object). What lies between is the ranks' own
work. A turn with `--scheduling rank0` has two calls, and is their sum. Replies that came while another rank still
worked cost the turn nothing, here as in the mechanism's arm.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from common.tracing import DISTRIBUTE
from report.trace import ThreadTrace, Turn, parts_of

# Parts that are not the control plane's own work of a turn. DISTRIBUTE is what this bench measures, the forward is the
# model's, and the other two are waits.
NOT_OWN = {*DISTRIBUTE, "forward", "idle", "wait_for_router"}

PLANNING = ("process_input_requests", "get_next_batch_to_run")


@dataclass
class Turns:
    """Of one run and one kind of turn, us. late: how long after rank 0 began to send the last follower came, negative:
    before.

    pause: since the beginning of the turn before, but for the same of it. planning: CPU time of a rank that plans, from
    having the input to the forward.
    """

    wall: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)
    planning: float = 0.0


@dataclass
class Call:
    """Of a rank by the router, ns: it is here, its argument is decoded, its result is there."""

    begin: int
    taken: int
    given: int = 0


class RunTrace:
    """The threads of one run with a single replica, told apart. Turns are numbered as in `report.trace`."""

    def __init__(self, threads: list[ThreadTrace]) -> None:
        ranks = {thread.process.split()[-1]: thread for thread in threads if " TP" in thread.process}
        self.ranks = [ranks[f"TP{rank}"] for rank in range(len(ranks))]
        self.router = next((thread for thread in threads if thread.process == "evo-router"), None)
        self.leader = self.router or self.ranks[0]
        self._calls = [_calls_of(thread) for thread in self.ranks]
        self._call_begins = [[call.begin for call in calls] for calls in self._calls]
        self._received = sorted(r.wall_ns for r in self.ranks[0].requests if r.name == "received")

    # ------------------------------------------------------------------ which turns

    def decode_turns(self, running: int) -> list[list[int]]:
        """The leader's turns in which so many requests ran and nothing new came: a list for each time that there were
        so many."""
        levels = [record for record in self.ranks[0].levels if record.name == "running"]  # noted where it changes
        stretches = [
            (level.wall_ns, after.wall_ns) for level, after in pairwise(levels) if level.value == running != after.value
        ]
        return [
            [
                number
                for number, turn in self._leading()
                if first <= turn.begin and turn.parts[-1].end <= last and self._arrivals(turn) == 0
            ]
            for first, last in stretches
        ]

    def arrival_turns(self, count: int) -> list[int]:
        """The leader's turns in which so many requests reached the scheduler."""
        return [number for number, turn in self._leading() if self._arrivals(turn) == count]

    def _leading(self) -> list[tuple[int, Turn]]:
        return [(number, turn) for number, turn in enumerate(self.leader.turns) if turn.ended]

    def _arrivals(self, turn: Turn) -> int:
        return bisect_right(self._received, turn.parts[-1].end) - bisect_left(self._received, turn.begin)

    # ------------------------------------------------------------------ what they took

    def measure(self, numbers: list[int]) -> Turns:
        result = Turns(planning=self.planning_us(numbers))
        for number in numbers:
            wall, late = self._distributed(number)
            result.wall.append(round(wall / 1000, 1))
            result.late.append(round(late / 1000, 1))
            begin, before = self.leader.turns[number].begin, self.leader.turns[number - 1]
            if number > 1:
                result.pause.append(round((begin - before.begin - self._taken(number - 1)) / 1000, 1))
        return result

    def _taken(self, number: int) -> int:
        wall, late = self._distributed(number)
        return wall + max(0, late)

    def _distributed(self, number: int) -> tuple[int, int]:
        return self._called(number) if self.router else self._broadcast(number)

    def _broadcast(self, number: int) -> tuple[int, int]:
        """wall and late in ns: turn n of one rank is turn n of every rank."""
        inside = [[part for part in rank.turns[number].parts if part.name in DISTRIBUTE] for rank in self.ranks]
        sends = next(part.begin for part in inside[0] if part.name == "transport")
        came = max(parts[0].begin for parts in inside[1:])
        encoding = sends - inside[0][0].begin
        return encoding + max(parts[-1].end for parts in inside[1:]) - max(sends, came), came - sends

    def _called(self, number: int) -> tuple[int, int]:
        wall, begin = 0, 0
        for part in self.leader.turns[number].parts:
            if part.name == "encode":
                begin = part.begin
            elif part.name == "decode":
                taken, given = self._calls_within(begin, part.begin)
                wall += (max(taken) - begin) + (part.end - max(given))
        return wall, 0

    def _calls_within(self, begin: int, end: int) -> tuple[list[int], list[int]]:
        """When each rank that was called meanwhile had its argument, and when its result."""
        calls: list[Call] = []
        for begins, of_rank in zip(self._call_begins, self._calls, strict=True):
            calls += of_rank[bisect_left(begins, begin) : bisect_right(begins, end)]
        return [call.taken for call in calls], [call.given for call in calls]

    def encoding_began(self, received: int) -> int:
        """In ns: when rank 0 or the router began to encode what rank 0 took in at `received`."""
        begins = [part.begin for turn in self.leader.turns for part in turn.parts if part.name == "encode"]
        return begins[bisect_left(begins, received) - 1]

    def planning_us(self, numbers: list[int]) -> float:
        """CPU time from having the input to the forward, per turn and rank that plans."""
        planning = [rank for rank in self.ranks if rank.plans]
        total = 0.0
        for rank in planning:
            parts = parts_of(rank, self._turns_of(rank, numbers))
            total += sum(parts[name][1] for name in PLANNING if name in parts)
        return total / len(planning) / len(numbers) / 1000

    def own_cpu_us(self, numbers: list[int]) -> dict[str, float]:
        """CPU time per turn of rank 0's parts but the forward and what brought the input. Of rpyc the router does a
        share of what rank 0 does elsewhere (taking requests in, sending texts out): it is one more part, "router"."""
        own = _own_parts(self.ranks[0], self._turns_of(self.ranks[0], numbers), len(numbers))
        if self.router:
            own["router"] = sum(_own_parts(self.router, numbers, len(numbers)).values())
        return own

    def _turns_of(self, rank: ThreadTrace, numbers: list[int]) -> list[int]:
        """The rank's turns of these turns of the leader: the same ones, or the calls that the router made in them."""
        if not self.router:
            return numbers
        spans = [(turn.begin, turn.parts[-1].end) for turn in (self.router.turns[number] for number in numbers)]
        begins = [turn.begin if turn.parts else 0 for turn in rank.turns]
        return [n for begin, end in spans for n in range(bisect_left(begins, begin), bisect_right(begins, end))]


def _own_parts(thread: ThreadTrace, turns: list[int], per: int) -> dict[str, float]:
    parts = parts_of(thread, turns)
    return {name: cpu / per / 1000 for name, (_, cpu) in parts.items() if name not in NOT_OWN}


def _calls_of(thread: ThreadTrace) -> list[Call]:
    """In order of time; of a rank that is not called, none that means anything."""
    calls: list[Call] = []
    for part in (part for turn in thread.turns for part in turn.parts):
        if part.name == "decode":
            calls.append(Call(part.begin, part.end))
        elif part.name == "encode" and calls:
            calls[-1].given = part.begin
    return calls
