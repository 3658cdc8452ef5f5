"""The processes of `bench mechanisms`: one driver and the receivers, who go through the same phases side by side.

A phase opens one mechanism, sends each payload so many times, and closes it: no other mechanism is open meanwhile. A
receiver writes when it had the list into memory that it shares with the driver. So nothing but the mechanism itself
travels, and the driver, who looks there after each pause, sends the next list only when all have this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from common.parallel.shared_memory import SharedBuffer
from common.processes import ChildContext
from experiments.bench.mechanism_base import Mechanism, Place
from experiments.bench.mechanism_counts import counted, counting
from experiments.bench.mechanism_payloads import make_messages

PACE = 0.001
PAUSES = 300  # of which the cost is measured
METERS = 5  # CPU time in ns, messages, bytes, encodings, decodings


@dataclass(frozen=True)
class Block:
    """So many steps with one payload; the first `warm` are not looked at.

    pace: s that the driver sleeps after each. work: s of CPU time that every rank burns as soon as it has a list,
    before it answers or waits for the next.
    """

    payload: str
    warm: int
    timed: int
    pace: float = PACE
    work: float = 0.0

    @property
    def steps(self) -> int:
        return self.warm + self.timed


@dataclass(frozen=True)
class Phase:
    number: int
    mechanism: str
    ranks: int
    codec: str
    blocks: tuple[Block, ...]
    counting: bool

    def place(self, folder: str) -> Place:
        return Place(folder, self.number, self.ranks, self.codec, sum(block.steps for block in self.blocks))

    def watched(self) -> contextlib.AbstractContextManager:
        return counting() if self.counting else contextlib.nullcontext()


@dataclass(frozen=True)
class Job:
    """What all processes are given. lines: a pipe from each receiver to the driver, for addresses and the end."""

    folder: str
    mechanisms: dict[str, Mechanism]
    phases: list[Phase]
    board: Board
    lines: list[tuple[Connection, Connection]]


class Board:
    """Shared by all: ns of the monotonic clock at which receiver r had list i, and had done its work on it; its meters
    around each block.

    stamps: int64 [receivers, steps, 2], 0 before; meters: int64 [receivers, blocks, 2 (first timed step, end), METERS]
    """

    def __init__(self, receivers: int, steps: int, blocks: int, buffer: SharedBuffer | None = None) -> None:
        self._shape = receivers, steps, blocks
        stamps, meters = receivers * steps * 2, receivers * blocks * 2 * METERS
        self._buffer = buffer or SharedBuffer(8 * (stamps + meters))
        numbers = np.frombuffer(self._buffer.memory, dtype=np.int64)
        self.stamps = numbers[:stamps].reshape(receivers, steps, 2)
        self.meters = numbers[stamps : stamps + meters].reshape(receivers, blocks, 2, METERS)

    def __reduce__(self) -> tuple:
        return Board, (*self._shape, self._buffer)


@dataclass
class Sample:
    """One block of one phase. wall: us of each timed step; cpu: us a step, of all processes together; counts: a step's
    messages, bytes, encodings, decodings, where they were counted."""

    mechanism: str
    ranks: int
    payload: str
    counting: bool
    wall: list[float] = field(default_factory=list)
    cpu: float = 0.0
    counts: list[float] = field(default_factory=list)


def read_meters() -> tuple[int, ...]:
    return (time.process_time_ns(), *counted())


def burn(seconds: float) -> None:
    """So much of this thread's CPU time."""
    end = time.thread_time_ns() + round(seconds * 1e9)
    while seconds and time.thread_time_ns() < end:
        pass


# ---------------------------------------------------------------------- a receiver


class Taker:
    """Called with each list as it arrives."""

    def __init__(
        self, phase: Phase, brings: Callable[[str], list[Any]], stamps: np.ndarray, meters: np.ndarray
    ) -> None:
        """brings: the list that a step with this payload must bring to this receiver"""
        self._phase, self._stamps, self._meters = phase, stamps, meters
        self._index = 0
        self._work = [block.work for block in phase.blocks for _ in range(block.steps)]
        self._marks: dict[int, tuple[int, int]] = {}  # step -> block, 0 or 1
        self._expected: dict[int, list[Any]] = {}  # step that is not timed -> what it must bring
        end = 0
        for number, block in enumerate(phase.blocks):
            # From having the last warm list to having the last one: the cost of so many whole steps.
            self._marks[end + block.warm - 1] = number, 0
            self._expected[end + block.warm - 1] = brings(block.payload)
            end += block.steps
            self._marks[end - 1] = number, 1

    def __call__(self, messages: list[Any]) -> None:
        now = time.monotonic_ns()
        expected = self._expected.get(self._index)
        if expected is not None and messages != expected:
            raise RuntimeError(f"{self._phase.mechanism}: what arrived is not what was sent")
        mark = self._marks.get(self._index)
        if mark is not None:
            self._meters[mark] = read_meters()
        burn(self._work[self._index])
        self._stamps[self._index] = now, time.monotonic_ns()  # last: from here on the driver may go on
        self._index += 1


def run_receiver(context: ChildContext, job: Job, index: int) -> None:
    torch.set_num_threads(1)
    line = job.lines[index][1]
    for phase in job.phases:
        mechanism = job.mechanisms[phase.mechanism]
        if index >= mechanism.receivers(phase.ranks):
            continue
        brings = functools.partial(mechanism.brings, index)
        took = Taker(phase, brings, job.board.stamps[index], job.board.meters[index])
        with phase.watched():
            line.send(mechanism.listen(context, phase.place(job.folder), index, took))
            mechanism.serve()
        line.send(None)
        gc.collect()
    context.ready()
    signal.pause()  # the parent kills what it has heard of


# ---------------------------------------------------------------------- the driver


def run_driver(context: ChildContext, job: Job) -> None:
    torch.set_num_threads(1)
    pause = measure_pause()
    samples = asyncio.run(drive(job))
    context.ready({"samples": samples, "pause_cpu": pause})
    signal.pause()


def measure_pause() -> float:
    """us of CPU time that a step costs the driver without sending anything."""
    before = time.process_time_ns()
    for _ in range(PAUSES):
        time.sleep(PACE)
    return (time.process_time_ns() - before) / PAUSES / 1000


async def drive(job: Job) -> list[Sample]:
    samples = []
    for phase in job.phases:
        samples += await drive_phase(job, phase)
        gc.collect()
    return samples


async def drive_phase(job: Job, phase: Phase) -> list[Sample]:
    mechanism = job.mechanisms[phase.mechanism]
    count = mechanism.receivers(phase.ranks)
    lines = [reader for reader, _ in job.lines[:count]]
    stamps, meters = job.board.stamps[:count], job.board.meters[:count]
    stamps[:] = 0
    meters[:] = 0
    driver = np.zeros((len(phase.blocks), 2, METERS), dtype=np.int64)
    began, ended = [], []
    with phase.watched():
        await mechanism.connect(phase.place(job.folder), [line.recv() for line in lines])
        for number, block in enumerate(phase.blocks):
            messages = make_messages(block.payload)
            for step in range(block.steps):
                if step == block.warm:
                    driver[number, 0] = read_meters()
                one = list(messages)  # a turn's own list, as the stages have it
                began.append(time.monotonic_ns())
                await mechanism.send(one)
                ended.append(time.monotonic_ns())
                if not mechanism.answers:  # the driver is a rank
                    burn(block.work)
                time.sleep(block.pace)
                while not stamps[:, len(began) - 1, 1].all():
                    time.sleep(block.pace)
            driver[number, 1] = read_meters()
        mechanism.close()
    for line in lines:
        line.recv()  # this receiver has closed, too
    arrived, done = stamps[:, : len(began)].max(axis=0).T
    wall = arrived - np.array(began)
    if mechanism.answers:
        wall += np.maximum(0, np.array(ended) - done)  # the way back
    return _samples(phase, wall, np.concatenate([driver[None], meters[:, : len(phase.blocks)]]))


def _samples(phase: Phase, wall: np.ndarray, meters: np.ndarray) -> list[Sample]:
    """wall: ns [steps]; meters: [processes, blocks, 2, METERS]"""
    samples, start = [], 0
    used = (meters[:, :, 1] - meters[:, :, 0]).sum(axis=0)  # [blocks, METERS]
    for block, (cpu, *counts) in zip(phase.blocks, used.tolist(), strict=True):
        sample = Sample(phase.mechanism, phase.ranks, block.payload, phase.counting)
        sample.wall = (wall[start + block.warm : start + block.steps] / 1000).round(1).tolist()
        sample.cpu = round(cpu / block.timed / 1000, 1)
        sample.counts = [count / block.timed for count in counts]
        samples.append(sample)
        start += block.steps
    return samples
