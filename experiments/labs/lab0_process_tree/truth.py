"""What the tests compare a solution with: the project's own description of a stage, and engines that run."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from common.args import EngineArgs
from common.process_tree import ProcessNode
from common.processes import ReadyReport
from evolution import Engine
from evolution.stages import process_tree
from report.trace import load, working_turns

HALF_A_TICK = 0.5 / os.sysconf("SC_CLK_TCK")  # s; two sums of the same ticks may differ in a last bit
LONG = {"max_new_tokens": 64, "ignore_eos": True, "temperature": 0}


def described(stage: str, tp_size: int, dp_size: int) -> ProcessNode:
    return process_tree(EngineArgs(stage=stage, tp_size=tp_size, dp_size=dp_size))


def parents_of(node: ProcessNode, parent: str = "") -> dict[str, str]:
    found = {node.name: parent}
    for child in node.children:
        found |= parents_of(child, node.name)
    return found


@contextlib.contextmanager
def by_heart() -> Iterator[None]:
    """Whoever asks the project for a process tree meanwhile is told off: a prediction is made without it."""
    with mock.patch.object(ProcessNode, "__init__", side_effect=AssertionError("asked the project for the tree")):
        yield


def started(engine: Engine) -> dict[int, tuple[str, int]]:
    """Name and parent's pid of each process, as each has reported itself when it was ready."""
    found = {}

    def add(report: ReadyReport, parent: int) -> None:
        found[report.pid] = (report.name, parent)
        for child in report.children:
            add(child, report.pid)

    for report in engine.processes:
        add(report, os.getpid())
    return found


@dataclass(frozen=True)
class Observation:
    """Of one engine that ran. started: as its processes reported themselves. seen: what the solution saw meanwhile, or
    the exception it raised. messages: of one decode turn, by the trace."""

    started: dict[int, tuple[str, int]]
    seen: dict[int, tuple[str, int]] | Exception
    messages: int


@functools.cache
def observe(stage: str, scheduling: str, look: Callable[[int], dict[int, tuple[str, int]]]) -> Observation:
    """Run one request at TP 2 on the simulated accelerator. Starting an engine takes seconds, so tests share it."""
    with tempfile.TemporaryDirectory() as folder:
        with Engine(device="sim", stage=stage, tp_size=2, scheduling=scheduling, trace_dir=folder) as engine:
            try:
                seen = look(os.getpid())
            except Exception as error:
                seen = error
            (stream,) = engine.submit(engine.make_requests("Hello", LONG, stream=True)[1])
            stream.result()
            tree = started(engine)
        return Observation(tree, seen, messages_in_trace(Path(folder)))


def messages_in_trace(folder: Path) -> int:
    """Of the usual decode turn, summed over all threads but main's. What goes on to the detokenizer and to main is the
    least of any turn, as now and then rank 0 also reports its load."""
    total = 0
    for thread in load(folder):
        if thread.process == "main":
            continue
        numbers = (working_turns(thread) or list(range(1, len(thread.turns))))[2:-2]
        turns = [thread.turns[number] for number in numbers]
        if not turns:
            continue
        to_ranks = Counter(turn.distribute_counts["messages"] for turn in turns).most_common(1)[0][0]
        total += to_ranks + min(turn.counts["messages"] - turn.distribute_counts["messages"] for turn in turns)
    return total
