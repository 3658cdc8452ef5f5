"""The turns that `bench planning` times: a Scheduler without a model, told made-up token ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from common import scheduler as scheduler_module
from common.batch import BatchPlan
from common.messages import GenerateRequest, SamplingParams, pack_ids
from common.scheduler import Scheduler
from common.scheduler_config import SchedulerConfig

SHARED, OWN, MAX_NEW = 64, 64, 1024  # of a prompt: tokens shared with others, tokens of its own; most new tokens
VOCAB = 32000


class Load:
    """A scheduler with `running` requests in its batch and `waiting` that cannot enter (no row is free)."""

    def __init__(self, policy: str, running: int, waiting: int, filled: bool = True) -> None:
        self.policy = policy
        self.running = running
        self.waiting = waiting
        self._rng = np.random.default_rng(0)
        self._shared = self._rng.integers(1, VOCAB, (8, SHARED), dtype=np.int32)
        self._count = 0
        self.entered: list[str] = []  # in the order in which they came; the first may have ended
        if filled:
            self.scheduler = self.new_scheduler()
            for _ in range(running):
                self.scheduler.add(self.new_request())
            while self.scheduler.running_count < running:
                self.turn()
            for _ in range(waiting):
                self.scheduler.add(self.new_request())
            self.turn()

    def new_scheduler(self) -> Scheduler:
        config = SchedulerConfig(
            max_total_tokens=2 * (self.running + 1) * (SHARED + OWN + MAX_NEW),
            max_running_requests=self.running,
            context_length=SHARED + OWN + MAX_NEW,
            chunked_prefill_size=-1,
            policy=self.policy,
            radix=True,
            eos_token_ids=(0,),
            max_prefill_tokens=self.running * (SHARED + OWN),
        )
        return Scheduler(config, None)

    def new_request(self, max_new: int = MAX_NEW) -> GenerateRequest:
        shared = self._shared[self._count % len(self._shared)]
        ids = np.concatenate([shared, self._rng.integers(1, VOCAB, OWN, dtype=np.int32)])
        self._count += 1
        self.entered.append(f"r{self._count}")
        return GenerateRequest(self.entered[-1], pack_ids(ids), SamplingParams(max_new_tokens=max_new), stream=True)

    def turn(self) -> BatchPlan:
        plan = self.scheduler.plan()
        self.scheduler.commit(plan, made_up(plan))
        self.scheduler.take_chunks()
        return plan


def made_up(plan: BatchPlan) -> np.ndarray:
    """Any tokens but the one that ends a text."""
    return np.full(plan.sampled_count(), 1 + plan.turn % 1000, dtype=np.int32)


def sample_decode(load: Load) -> dict[str, float]:
    plan, planning = timed(load.scheduler.plan)
    tokens = made_up(plan)
    _, committing = timed(load.scheduler.commit, plan, tokens)
    load.scheduler.take_chunks()
    require(len(plan.decode_rows) == 4 * load.running, "a decode turn of all that run")
    return {"plan": planning, "commit": committing}


def sample_admission(load: Load) -> dict[str, float]:
    scheduler = load.scheduler
    while not scheduler.abort(load.entered.pop(0)):
        pass  # that one has gone already
    _, adding = timed(scheduler.add, load.new_request())
    with timed_order() as ordering:
        plan, planning = timed(scheduler.plan)
    tokens = made_up(plan)
    _, committing = timed(scheduler.commit, plan, tokens)
    scheduler.take_chunks()
    require(len(plan.prefill) == 1 and scheduler.waiting_count == load.waiting, "one request admitted")
    load.turn()  # somebody tries to enter, and finds no row
    admitting = planning - ordering.microseconds
    return {"add": adding, "order": ordering.microseconds, "admit": admitting, "commit": committing}


def sample_burst(load: Load) -> dict[str, float]:
    scheduler = load.new_scheduler()
    requests = [load.new_request(max_new=2) for _ in range(load.running)]
    _, adding = timed(lambda: [scheduler.add(request) for request in requests])
    with timed_order() as ordering:
        prefill, planning = timed(scheduler.plan)
    _, sharing = timed(scheduler.commit, prefill, made_up(prefill))
    decode, decoding = timed(scheduler.plan)
    _, ending = timed(scheduler.commit, decode, made_up(decode))
    require(len(prefill.prefill) == load.running and not scheduler.has_work, "all admitted together, all ended")
    return {
        "add": adding,
        "order": ordering.microseconds,
        "admit": planning - ordering.microseconds,
        "commit prefill": sharing,
        "plan decode": decoding,
        "commit end": ending,
    }


def timed(call: Callable, *arguments: Any) -> tuple[Any, float]:
    """What the call returns, and the microseconds of CPU time that it took."""
    began = time.thread_time_ns()
    result = call(*arguments)
    return result, (time.thread_time_ns() - began) / 1000


class timed_order:  # noqa: N801, it reads as a with statement
    """Meanwhile the scheduler's call of order_waiting is timed, so that matching can be told from admitting."""

    def __enter__(self) -> timed_order:
        self.microseconds = 0.0
        self._order = scheduler_module.order_waiting
        scheduler_module.order_waiting = self._timed
        return self

    def _timed(self, *arguments: Any) -> Iterable[Any]:
        result, self.microseconds = timed(self._order, *arguments)
        return result

    def __exit__(self, *exception: object) -> None:
        scheduler_module.order_waiting = self._order


def require(true: bool, what: str) -> None:
    if not true:
        raise AssertionError(f"the turn was not what is to be measured: {what}")
