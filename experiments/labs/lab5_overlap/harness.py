"""What your loop runs on, and what watches it: a real worker with the model `tiny`, in this process.

`Executor` is the worker's executor with 0.4.0's interface: a decode batch names its input ids. (The project's own plans
name rows only; its runner remembers the last token of each.) So a wrong id gives wrong tokens, and a placeholder that
nobody resolved an error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from common.args import EngineArgs
from common.batch import BatchPlan, Sampled
from common.messages import GenerateRequest, Request, SamplingParams, StopRequest, TurnOutput, pack_ids
from common.worker import Worker
from evolution.checks import resolve_args

from .launch import decode_rows

GATE_S = 1.0  # that a forward of `Watched` waits for the next turn's plan: what comes later is not overlapped
MOST_TURNS = 5000


class Executor:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def execute(self, plan: BatchPlan, input_ids: np.ndarray) -> Sampled:
        """One forward, one sample. input_ids: int32, of each decode row the token that it is fed. ValueError if they do
        not fit the plan, or one of them is a placeholder."""
        rows = decode_rows(plan)
        if len(input_ids) != len(rows):
            raise ValueError(f"turn {plan.turn}: {len(input_ids)} input ids for {len(rows)} decode rows")
        if len(rows) and input_ids.min() < 0:
            raise ValueError(f"turn {plan.turn}: the placeholder {input_ids.min()} reached the forward")
        if len(rows):
            self.worker.runner.last_token[rows] = input_ids
        return self.worker.execute(plan)


class Watched(Executor):
    """Writes down when turns are planned, and when their forwards begin and end: `events`, ("plan" | "begin" | "end",
    turn), in the order in which they happened.

    Each forward lasts until somebody has tried to plan the next turn, but no longer than GATE_S: as a GPU that is slow
    enough. So what is overlapped depends on the loop alone, not on the machine.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.events: list[tuple[str, int]] = []
        self._tried = threading.Condition()
        self._tries = 0  # of planning
        self._try_of: dict[int, int] = {}  # turn -> the try that gave it
        self._plan_ahead = worker.plan_ahead
        worker.plan_ahead = self._plan

    def _plan(self, messages: list[Request]) -> BatchPlan | None:
        plan = self._plan_ahead(messages)
        with self._tried:
            self._tries += 1
            if plan is not None:
                self._try_of[plan.turn] = self._tries
                self.events.append(("plan", plan.turn))
            self._tried.notify_all()
        return plan

    def execute(self, plan: BatchPlan, input_ids: np.ndarray) -> Sampled:
        with self._tried:
            self.events.append(("begin", plan.turn))
        sampled = super().execute(plan, input_ids)
        with self._tried:
            self._tried.wait_for(lambda: self._tries > self._try_of[plan.turn], GATE_S)
            self.events.append(("end", plan.turn))
        return sampled


class Counted(Executor):
    """Counts what was computed: `sampled[rid]` tokens for each request, `decode_rows` in all decode steps."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.sampled: Counter[str] = Counter()
        self.decode_rows = 0
        self._plan_ahead = worker.plan_ahead
        worker.plan_ahead = self._plan

    def _plan(self, messages: list[Request]) -> BatchPlan | None:
        plan = self._plan_ahead(messages)
        if plan is not None:
            states = self.worker.scheduler._open[-1].states
            samples = [seq.sample for seq in plan.prefill] or [True] * len(states)
            self.sampled.update(state.rid for state, sample in zip(states, samples, strict=True) if sample)
            self.decode_rows += len(decode_rows(plan))
        return plan


def rows_of(worker: Worker) -> dict[int, str]:
    """Which request has which row now. A request that ends gives its row back when the turn is committed."""
    return {state.row: state.rid for state in worker.scheduler._states.values() if state.row is not None}


# ---------------------------------------------------------------------- workers and their traffic


def make_worker(**settings: Any) -> Worker:
    """One rank of `tiny`, in this process. `settings`: fields of EngineArgs."""
    small = {"model_path": "tiny", "max_total_tokens": 2000, "max_running_requests": 8, "context_length": 500}
    args, _ = resolve_args(EngineArgs(**small | settings))
    worker = Worker(args, replica=0, rank=0, group=None)
    torch.set_num_threads(1)  # more would only wait for each other: the model is tiny
    return worker


def make_request(rid: str, prompt: list[int], **sampling: Any) -> GenerateRequest:
    fields = {"ignore_eos": True, "temperature": 0.0} | sampling
    return GenerateRequest(rid, pack_ids(prompt), SamplingParams(**fields), stream=True)


class Traffic:
    """What a rank's socket would give, turn by turn: {turn: messages}. Where nothing is to be done it goes on with the
    next messages, as a loop that blocks; behind the last of them it says stop."""

    def __init__(self, worker: Worker, messages: dict[int, list[Request]]) -> None:
        self._worker = worker
        self._messages = dict(sorted(messages.items()))
        self._turn = 0
        self._calls = 0

    def recv(self) -> list[Request]:
        self._calls += 1
        if self._calls > MOST_TURNS:
            raise RuntimeError(f"{MOST_TURNS} turns, and the requests have not ended: the loop makes no progress")
        self._turn += 1
        if not self._worker.busy:
            if not self._messages:
                return [StopRequest(0)]
            self._turn = max(self._turn, min(self._messages))
        return self._messages.pop(self._turn, [])


class Outputs:
    """What the loop sends, checked on the way in: one finish each, nothing behind it."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, tuple[str, int | str | None]] = {}
        self.replies: dict[int, tuple[bool, dict]] = {}
        self.stats: dict[str, int] = {}  # of the scheduler, at the end

    def send(self, output: TurnOutput) -> None:
        for chunk in output.tokens.chunks if output.tokens else []:
            assert chunk.rid not in self.finish, f"{chunk.rid}: a chunk behind its last one"
            self.tokens.setdefault(chunk.rid, []).extend(chunk.new_ids)
            if chunk.finish:
                self.finish[chunk.rid] = (chunk.finish.type, chunk.finish.matched)
        for reply in output.control:
            if hasattr(reply, "ok"):
                self.replies[reply.id] = (reply.ok, reply.detail)


def run_normal(messages: dict[int, list[Request]], **settings: Any) -> Outputs:
    """The project's normal loop: plan, execute, commit, one after the other."""
    worker, outputs = make_worker(**settings), Outputs()
    traffic = Traffic(worker, messages)
    while True:
        output = worker.step(traffic.recv())
        outputs.send(output)
        if output.stop:
            outputs.stats = worker.scheduler.stats()
            return outputs


Loop = Callable[[Worker, Executor, Callable[[], list[Request]], Callable[[TurnOutput], None]], list[str]]


def run_overlapped(
    loop: Loop, messages: dict[int, list[Request]], watch: type[Executor] = Executor, **settings: Any
) -> tuple[Outputs, Executor, list[str]]:
    """The student's loop on the same traffic; what it sent, the executor, and who it says was computed too far."""
    worker, outputs = make_worker(**settings), Outputs()
    executor = watch(worker)
    too_far = loop(worker, executor, Traffic(worker, messages).recv, outputs.send)
    stats = outputs.stats = worker.scheduler.stats()
    assert not worker.scheduler._open, "the loop has left a turn that is not committed"
    assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"], "KV slots are lost"
    return outputs, executor, too_far


def mixed_traffic(
    seed: int, count: int, every: int = 2, longest: int = 30, stops: bool = True
) -> dict[int, list[Request]]:
    """Requests of all kinds, one each `every` turns: greedy and sampled, some of them with shared prefixes, ended by
    their length and, with `stops`, by a stop id or by a stop string."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(1, 250, 40).tolist()
    messages: dict[int, list[Request]] = {}
    for i in range(count):
        prompt = shared[: int(rng.integers(0, 40))] + rng.integers(1, 250, int(rng.integers(1, 20))).tolist()
        sampling: dict[str, Any] = {"max_new_tokens": int(rng.integers(0, longest)), "seed": i}
        if i % 3 == 0:
            sampling["temperature"] = 1.0
        if stops and i % 3 == 1:
            sampling |= {"stop_token_ids": tuple(range(0, 256, 16)), "temperature": 1.2}
        if stops and i % 6 == 2:
            sampling |= {"stop": ("e", "Q", "7"), "temperature": 1.5}
        messages.setdefault(1 + every * i, []).append(make_request(f"r{i}", prompt, **sampling))
    return messages
