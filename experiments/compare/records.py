"""What a comparison writes: a plan and its runs. All times are in microseconds, as whole numbers, but where named.

A run is one engine's life. It is written when it is over, so an interruption loses the run it meets and no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

PLAN = "plan.json"
RUNS = "runs.jsonl"
MOST_SAMPLES = 501


class Arm(msgspec.Struct, frozen=True):
    """One configuration. `copy` tells two alike apart: "" but in an A/A comparison."""

    stage: str
    constants: str
    scheduling: str
    tp_size: int
    dp_size: int
    copy: str = ""

    @property
    def shape(self) -> str:
        return f"TP {self.tp_size} DP {self.dp_size}"

    @property
    def name(self) -> str:
        words = (self.stage, self.constants, self.scheduling, self.shape, self.copy)
        return " ".join(word for word in words if word)


class Workload(msgspec.Struct, frozen=True):
    """`rounds` times the same number of requests, of other random token ids each time, on an empty cache."""

    num_prompts: int
    input_len: int
    output_len: int
    rounds: int
    request_rate: float | None = None  # requests/s, Poisson; None: all at once


class Plan(msgspec.Struct):
    arms: list[Arm]
    repeats: int
    workload: Workload
    settings: dict[str, Any]  # of the engine, the same in every arm
    environment: dict[str, Any]


class Thread(msgspec.Struct):
    """A thread's CPU time and context switches during the workload, from the OS."""

    tid: int
    name: str
    cpu_us: int
    voluntary: int
    involuntary: int


class Process(msgspec.Struct):
    """A process that really ran. `parent`: that process's pid; 0: main has none. `cpu_us`: from its CPU clock, so with
    that of threads that ended meanwhile. `sockets`: how many it holds open, by kind (unix, tcp), at the end."""

    name: str
    role: str
    pid: int
    parent: int
    cpu_us: int
    threads: list[Thread]
    sockets: dict[str, int]


class Turns(msgspec.Struct):
    """Where one traced thread's time went during the workload. `parts`: of its working turns, those with a forward (a
    router's: with a call), part -> (wall us, CPU us) in all of them together; `rest`: the same of the others.
    `medians`: of what a working turn takes, in us: the whole "turn" without waits for work; of it "forward" and
    "control" (all but the forward, an era's sleeps too).
    `counts`: messages, bytes, pickles, copies, collectives of the working turns; of a thread that has none, of all.
    `rank`: None where no rank runs."""

    process: str
    thread: str
    replica: int | None
    rank: int | None
    working: int
    others: int
    parts: dict[str, tuple[float, float]]
    rest: dict[str, tuple[float, float]]
    medians: dict[str, float]
    counts: dict[str, int]


class Distribute(msgspec.Struct):
    """How a turn's input reaches the ranks of a replica: medians over its working turns, in us, see report.distribute.
    There is none where a replica has one rank."""

    replica: int
    encode: float
    wait_for_slowest: float
    transport: float
    decode: float


class Strip(msgspec.Struct):
    """What a thread did during one turn of replica 0's rank 0: (part, begin, end), in us from that turn's begin."""

    process: str
    thread: str
    parts: list[tuple[str, float, float]]


class Run(msgspec.Struct):
    """`tokens`: a digest of all output ids, the same in every arm. `order`: its place among all runs of the comparison.
    `ttft_us`, `tpot_us`, `e2e_us`: per request. `itl_us`, per token, and `gap_us`, between two chunks of a request, are
    sorted, and of more than MOST_SAMPLES so many order statistics at even distances, the least and the largest among
    them. `stats`: what the replicas' schedulers and loops counted, summed over the replicas."""

    arm: Arm
    repeat: int
    order: int
    began: str
    load_average: tuple[float, float, float]
    startup_s: float
    duration_s: float
    output_tokens: int
    tokens: str
    ttft_us: list[int]
    tpot_us: list[int]
    e2e_us: list[int]
    itl_us: list[int]
    gap_us: list[int]
    stats: dict[str, float]
    processes: list[Process]
    turns: list[Turns]
    distribute: list[Distribute]
    strip: list[Strip]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """For whoever writes a comparison there. ValueError of one line if somebody does, or nobody can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another comparison is writing there") from None
        yield
    finally:
        os.close(descriptor)


def write_plan(folder: Path, plan: Plan) -> None:
    """A plan that is there already is replaced in one step."""
    new = folder / (PLAN + ".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    new.replace(folder / PLAN)


def read_plan(folder: Path) -> Plan:
    """ValueError of one line if the folder holds no comparison."""
    try:
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
    except OSError as error:
        raise ValueError(f"{folder} holds no comparison: {PLAN}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{folder / PLAN}: {error}") from None


def append_run(folder: Path, run: Run) -> None:
    with (folder / RUNS).open("ab") as file:
        file.write(msgspec.json.encode(run) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_runs(folder: Path) -> list[Run]:
    """All whole runs. A last line without its end, from a process that was killed while writing, does not count.
    ValueError of one line for anything else that cannot be read."""
    path = folder / RUNS
    if not path.exists():
        return []
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    runs = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            runs.append(msgspec.json.decode(line, type=Run))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return runs


def drop_torn_line(folder: Path) -> None:
    """Before going on: what was being written when the last comparison was killed."""
    path = folder / RUNS
    if path.exists():
        try:
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
