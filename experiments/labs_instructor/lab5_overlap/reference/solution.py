"""Lab 5, reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from common.batch import BatchPlan, Sampled
from common.messages import GenerateRequest, Request, TurnOutput
from common.worker import Worker
from evolution.peer_schedulers.scheduler import PeerScheduler

from .harness import Executor, rows_of
from .launch import Launch, decode_rows, sampling_rows


class TokenMap:
    def __init__(self, size: int) -> None:
        self._tokens = np.zeros(size, dtype=np.int32)
        self._next = 0

    def reserve(self, n: int) -> np.ndarray:
        cells = (self._next + np.arange(n)) % len(self._tokens)
        self._next += n
        return (-1 - cells).astype(np.int32)

    def store(self, names: np.ndarray, tokens: np.ndarray) -> None:
        self._tokens[-1 - names] = tokens

    def resolve(self, ids: np.ndarray) -> np.ndarray:
        resolved = ids.copy()
        unknown = ids < 0
        resolved[unknown] = self._tokens[-1 - ids[unknown]]
        return resolved


class InputNames:
    def __init__(self, rows: int, token_map: TokenMap) -> None:
        self._names = np.zeros(rows, dtype=np.int32)
        self._map = token_map

    def launch(self, plan: BatchPlan) -> Launch:
        input_ids = self._names[decode_rows(plan)]
        names = self._map.reserve(plan.sampled_count())
        self._names[sampling_rows(plan)] = names
        return Launch(plan, input_ids, names)

    def commit(self, launch: Launch, ids: np.ndarray) -> None:
        rows = sampling_rows(launch.plan)
        still = self._names[rows] == launch.names
        self._names[rows[still]] = ids[still]


class ForwardThread:
    def __init__(self, execute: Callable[[BatchPlan, np.ndarray], Sampled], token_map: TokenMap) -> None:
        self._execute = execute
        self._map = token_map
        self._launches: SimpleQueue[Launch | None] = SimpleQueue()
        self._results: SimpleQueue[Sampled | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def launch(self, launch: Launch) -> None:
        self._launches.put(launch)

    def result(self) -> Sampled:
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> None:
        self._launches.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (launch := self._launches.get()) is not None:
            try:
                sampled = self._execute(launch.plan, self._map.resolve(launch.input_ids))
            except BaseException as error:
                self._results.put(error)
                continue
            self._map.store(launch.names, sampled.ids)
            self._results.put(sampled)


def overlap_loop(
    worker: Worker,
    names: InputNames,
    forward: ForwardThread,
    recv: Callable[[], list[Request]],
    send: Callable[[TurnOutput], None],
) -> list[str]:
    too_far: list[str] = []
    running: Launch | None = None
    while True:
        messages = recv()
        if running and not all(isinstance(message, GenerateRequest) for message in messages):
            commit(worker, names, running, forward.result())
            running = None
        plan = worker.plan_ahead(messages)
        following = None
        if plan is not None:
            following = names.launch(plan)
            forward.launch(following)
        if running:
            ended = commit(worker, names, running, forward.result())
            if plan is not None:
                too_far += [ended[row] for row in decode_rows(plan).tolist() if row in ended]
        running = following
        output = worker.output()
        send(output)
        if output.stop:
            return too_far


def commit(worker: Worker, names: InputNames, launch: Launch, sampled: Sampled) -> dict[int, str]:
    """Who ended in it, by the row that it had."""
    before = rows_of(worker)
    worker.commit(launch.plan, sampled)
    names.commit(launch, sampled.ids)
    left = rows_of(worker)
    return {row: rid for row, rid in before.items() if row not in left}


def overlapped(events: list[tuple[str, int]]) -> tuple[int, int]:
    when = {event: place for place, event in enumerate(events)}
    forwards = [turn for kind, turn in events if kind == "end"]
    late = len(events)
    return sum(when.get(("plan", turn + 1), late) < when["end", turn] for turn in forwards), len(forwards)


def event_loop(scheduler: PeerScheduler, executor: Executor) -> None:
    planner = scheduler.worker.scheduler
    rows = planner.config.max_running_requests
    tokens = TokenMap(2 * rows)
    forward = ForwardThread(executor.execute, tokens)

    def send(output: TurnOutput) -> None:
        if scheduler.rank == 0:
            scheduler.send(output)

    overlap_loop(scheduler.worker, InputNames(rows, tokens), forward, scheduler.recv_requests, send)
    forward.stop()


def decode_rows_computed(lengths: list[int], overlap: bool) -> int:
    return sum(length if overlap else max(length - 1, 0) for length in lengths)
