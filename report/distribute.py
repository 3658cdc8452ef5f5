"""How what a turn hands out reaches the ranks: encode, wait for the slowest rank, transport, decode.

No thread can see this alone: a rank that waits for a broadcast cannot tell whether rank 0 has begun to send. The traces
of all ranks can, since their clock is one.

```
 broadcast  rank 0     ..encode|transport.............|
            follower   ....other work.....|transport..........|decode
                               <--------->                       wait_for_slowest: until the last one has entered
                                          <------------------>   transport: until the last one has it all

 rpyc       router     ..encode|transport....................................|decode
            rank       ....other work.....|wait....|decode|...work...|encode|wait
                               <--------->                                      wait_for_slowest: until all are ready
                                          <------->                   <---->    transport: to the last call's begin; and
                                                                                from the last one's end
```
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from statistics import median
from typing import NamedTuple

from report.trace import WAITS, Part, ThreadTrace, Turn

STEPS = ("encode", "wait_for_slowest", "transport", "decode")


def replicas(threads: list[ThreadTrace]) -> list[list[ThreadTrace]]:
    """The threads that `distribute_split` wants, of each replica whose ranks were traced."""
    ranks: defaultdict[str, list[ThreadTrace]] = defaultdict(list)
    for thread in sorted(threads, key=lambda thread: thread.process.rpartition("TP")[2].zfill(9)):
        if thread.executes and "TP" in thread.process and thread.thread != "forward":
            ranks["".join(re.findall(r"DP\d+", thread.process))].append(thread)
    routers = [thread for thread in threads if not thread.executes and any(t.has("encode") for t in thread.turns)]
    found = []
    for replica, of_replica in sorted(ranks.items()):
        callers = [router for router in routers if router.thread in (replica or "loop", replica)]
        found.append(callers[:1] + of_replica)
    return found


class Served(NamedTuple):
    """What one rank did about one broadcast or call, ns. `ready`: it began to wait for it; `arrived`: it has come, all
    of it; `ended`: it was dealt with (of a call)."""

    ready: int
    arrived: int
    ended: int
    encode: int
    decode: int


def distribute_split(threads: list[ThreadTrace], turns: list[int]) -> dict[str, float]:
    """Of each of STEPS the median over these turns, us per turn. `threads`: of one replica, first the one that hands
    out, whose turns these are (rank 0, or the router's), then the others (of rpyc: all ranks). Where the first is
    narrowed to a window the others need not be, and better are not. A turn in which nothing was handed out, or whose
    other end was not traced, is left out; {} when none is left."""
    sender, others = threads[0], threads[1:]
    if not others:
        return {}
    served = [_broadcasts(thread) if sender.executes else _calls(thread) for thread in others]
    ends = [[one.arrived for one in of_rank] for of_rank in served]
    split = _split_broadcast if sender.executes else _split_call
    found = []
    for number in turns:
        sent = _sent(sender.turns[number].parts)
        steps = [split(one, served, ends) for one in sent]
        if sent and None not in steps:
            found.append(sum(filter(None, steps), Counter()))
    return {step: median(turn[step] for turn in found) / 1000 for step in STEPS} if found else {}


class Sent(NamedTuple):
    """One broadcast or call at its sender. `end`: its transport's, with which a router has all replies."""

    begin: int
    end: int
    encode: int
    decode: int


def _sent(parts: list[Part]) -> list[Sent]:
    """A router's transport may be interrupted by what it receives."""
    sent: list[Sent] = []
    encode, open_ = 0, False
    for part in parts:
        if part.name == "transport":
            if open_:
                sent[-1] = sent[-1]._replace(end=part.end)
            else:
                sent.append(Sent(part.begin, part.end, encode, 0))
            encode, open_ = 0, True
        elif part.name == "encode":
            encode, open_ = part.wall, False
        elif part.name == "decode" and sent:
            sent[-1] = sent[-1]._replace(decode=sent[-1].decode + part.wall)
        if part.name not in ("transport", "recv_requests"):
            open_ = False
    return sent


# ---------------------------------------------------------------------- broadcasts


def _broadcasts(thread: ThreadTrace) -> list[Served]:
    """A follower's turn begins with one: the wait (`idle` where there was nothing to do), the content, the decoding."""
    found = []
    for turn in thread.turns[1:]:
        waits = [part for part in turn.parts if part.name in ("idle", "transport")]
        if waits:
            found.append(Served(waits[0].begin, waits[-1].end, waits[-1].end, 0, _wall(turn, "decode")))
    return found


def _split_broadcast(sent: Sent, served: list[list[Served]], ends: list[list[int]]) -> Counter[str] | None:
    """Its receipt is the first that ended after it began: the forward of the turn before has brought all ranks
    together, so none of them is further behind."""
    receipts = []
    for of_rank, arrived in zip(served, ends, strict=True):
        place = bisect_left(arrived, sent.begin)
        if place == len(of_rank):
            return None
        receipts.append(of_rank[place])
    entered = max(sent.begin, *(one.ready for one in receipts))
    return Counter(
        encode=sent.encode,
        wait_for_slowest=entered - sent.begin,
        transport=max(one.arrived for one in receipts) - entered,
        decode=max(one.decode for one in receipts),
    )


# ---------------------------------------------------------------------- calls


def _calls(thread: ThreadTrace) -> list[Served]:
    """A rank's turn begins when a call has arrived, and ends with the wait for the next."""
    found = []
    for before, turn in zip(thread.turns, thread.turns[1:], strict=False):
        wait = before.parts[-1] if before.parts else None
        ready = wait.begin if wait and wait.name in WAITS else turn.begin
        ended = turn.parts[-1].begin if turn.parts[-1].name in WAITS else turn.parts[-1].end
        found.append(Served(ready, turn.begin, ended, _wall(turn, "encode"), _wall(turn, "decode")))
    return found


def _split_call(sent: Sent, served: list[list[Served]], ends: list[list[int]]) -> Counter[str] | None:
    """The ranks that were called are those with a turn that began during it."""
    called = []
    for of_rank, arrived in zip(served, ends, strict=True):
        place = bisect_left(arrived, sent.begin)
        if place < len(of_rank) and of_rank[place].arrived <= sent.end:
            called.append(of_rank[place])
    if not called:
        return None
    ready = max(sent.begin, *(one.ready for one in called))
    there = max(one.arrived for one in called) - ready
    back = sent.end - max(one.ended for one in called)
    return Counter(
        encode=sent.encode + max(one.encode for one in called),
        wait_for_slowest=ready - sent.begin,
        transport=max(0, there) + max(0, back),
        decode=sent.decode + max(one.decode for one in called),
    )


def _wall(turn: Turn, name: str) -> int:
    return sum(part.wall for part in turn.parts if part.name == name)
