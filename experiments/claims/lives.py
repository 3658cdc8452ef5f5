"""Engines that several trials look at: each is started once, given the same work, and ended; what was seen is kept.

The work: WARM requests at once, one request of LONG tokens whose decode turns bring nothing new, SINGLES requests of
one token, one after the other, and BURST at once; then a look at the counts. All on the simulated accelerator, so that
no model takes the cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from common.args import EngineArgs
from common.os_accounts import thread_accounts
from common.processes import ReadyReport
from common.run_folder import run_folder
from evolution.engine import Engine
from experiments.bench.engines import children_of, finish, start
from experiments.bench.idle import first_times
from experiments.claims.once import once
from report.trace import ThreadTrace, load, working_turns

WARM, SINGLES, BURST = 8, 30, 16  # requests
REQUESTS = WARM + 1 + SINGLES + BURST
COMMANDS = 2  # of main, for all replicas: stats, and the end
LONG = 101  # tokens of the long request
PROMPT = 16


@dataclass(frozen=True)
class Life:
    """`processes`: those that main started, each with what it started. `threads`: their traces.
    `waiting`: voluntary switches of each thread of a router that waits for a rank, while the long request ran.
    `ports`: TCP ports on which its processes listen."""

    processes: list[ReadyReport]
    threads: list[ThreadTrace]
    waiting: list[int]
    ports: int

    @property
    def names(self) -> list[str]:
        """With main's."""
        return ["main", *(node.name for report in self.processes for node in report.walk())]

    def depth(self, ending: str) -> int:
        """How many processes lie between main and the one whose name ends so."""

        def look(reports: Sequence[ReadyReport], depth: int) -> list[int]:
            found = [depth for report in reports if report.name.endswith(ending)]
            return found + [place for report in reports for place in look(report.children, depth + 1)]

        (depth,) = look(self.processes, 0)
        return depth

    def thread(self, process: str, name: str | None = None) -> ThreadTrace:
        """That runs turns."""
        return next(t for t in self.threads if t.process == process and name in (None, t.thread) and len(t.turns) > 1)

    def rank(self, rank: int) -> ThreadTrace:
        return next(t for t in self.threads if t.process.endswith(f" TP{rank}") and len(t.turns) > 1)

    @property
    def planning(self) -> int:
        """Ranks that hold a scheduler and plan."""
        return sum(thread.plans for thread in self.threads)


@once
def life(stage: str, tp: int = 1, dp: int = 1, constants: str = "level", check: int = 0) -> Life:
    """Every rank plans, an engine blocks when idle; `check`: compare the ranks' plans every so many turns, and end at
    the first difference."""
    with run_folder() as folder:
        args = EngineArgs(
            stage=stage,
            tp_size=tp,
            dp_size=dp,
            constants=constants,
            scheduling="replicated",
            idle="block",
            device="sim",
            check_divergence=check,
            trace_dir=str(folder),
        )
        with start(args) as engine:
            send(engine, WARM, 4)
            before = waiting_switches(engine)
            send(engine, 1, LONG, stream=True)
            waiting = [after - first for after, first in zip(waiting_switches(engine), before, strict=True)]
            for _ in range(SINGLES):
                send(engine, 1, 1)
            send(engine, BURST, 4)
            engine.stats()
            ports = listening(engine)
            processes = engine.processes
        threads = load(folder)
    return Life(processes, threads, waiting, ports)


def first_times_of(stage: str, dp: int) -> list[float]:
    """s of SINGLES requests to an engine of one rank a replica, from their hand-over until their rank has them."""
    with run_folder() as folder:
        with start(EngineArgs(stage=stage, dp_size=dp, device="sim", trace_dir=str(folder))) as engine:
            send(engine, WARM, 4)
            numbers = [number for _ in range(SINGLES) for number in send(engine, 1, 1)]
        times = first_times(folder)
    return [times[number] for number in numbers if number in times]


def send(engine: Engine, count: int, tokens: int, stream: bool = False, length: int = PROMPT) -> list[int]:
    """All at once, and waits for the last token. The numbers in their ids."""
    ids = [[(7 * index + place) % 251 + 1 for place in range(length)] for index in range(count)]
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    streams = finish(engine, engine.make_requests(None, params, ids, stream=stream)[1])
    return [int(stream.rid.removeprefix("r")) for stream in streams]


def waiting_switches(engine: Engine) -> list[int]:
    """How often each thread that waits for a rank went to sleep so far."""
    threads = [thread for pid in children_of(engine) for thread in thread_accounts(pid)]
    return [thread.voluntary for thread in threads if thread.name.startswith("wait for TP")]


def listening(engine: Engine) -> int:
    connections = [one for pid in children_of(engine) for one in psutil.Process(pid).net_connections("tcp")]
    return sum(one.status == psutil.CONN_LISTEN for one in connections)


def usual(thread: ThreadTrace, name: str, distribute: bool = False) -> int:
    """What most of its working turns count."""
    turns = [thread.turns[number] for number in working_turns(thread)]
    counts = Counter((turn.distribute_counts if distribute else turn.counts)[name] for turn in turns)
    return counts.most_common(1)[0][0]


def total(thread: ThreadTrace, name: str) -> int:
    return sum(turn.counts[name] for turn in thread.turns)
