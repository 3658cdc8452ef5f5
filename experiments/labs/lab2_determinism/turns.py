"""Scripts of traffic, and a rank's loop over one: the engine's own scheduler, with tokens that need no model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import common.policy
import common.scheduler
from common.batch import BatchPlan
from common.messages import AbortRequest, GenerateRequest, Request, SamplingParams, pack_ids
from common.request_state import RequestState
from common.scheduler import Scheduler, SchedulerConfig

Turns = list[list[Request]]  # what arrives in each turn, the first first
Order = Callable[[list[RequestState]], list[RequestState]]
TENANTS = ("alice", "bob", "carol", "dave", "eve", "frank", "grace", "heidi")


def make_turns(seed: int, count: int, most: int = 3, aborts: float = 0.05) -> Turns:
    """So many turns, each with up to `most` requests of several tenants, and now and then an abort. Some prompts begin
    alike, so that the radix cache has something to share and to evict."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(1000) for _ in range(rng.randint(5, 40))] for _ in range(6)]
    turns: Turns = []
    rids: list[str] = []
    for _ in range(count):
        messages: list[Request] = []
        for _ in range(rng.randint(0, most)):
            rids.append(f"{rng.choice(TENANTS)}-{len(rids)}")
            ids = rng.choice(beginnings) + [rng.randrange(1000) for _ in range(rng.randint(1, 20))]
            sampling = SamplingParams(max_new_tokens=rng.randint(1, 8), seed=rng.randrange(100), ignore_eos=True)
            messages.append(GenerateRequest(rids[-1], pack_ids(ids), sampling))
        if rids and rng.random() < aborts:
            messages.append(AbortRequest(len(turns), rng.choice(rids)))
        turns.append(messages)
    return turns


def make_scheduler(rows: int = 6, slots: int = 400, chunk: int = 64) -> Scheduler:
    """At most so many requests run at once, in so many KV slots; chunk: most prompt tokens of a turn, -1 for all."""
    return Scheduler(
        SchedulerConfig(
            max_total_tokens=slots,
            max_running_requests=rows,
            context_length=slots,
            chunked_prefill_size=chunk,
            policy="fcfs",
            radix=True,
            eos_token_ids=(0,),
        ),
        None,
    )


def play(turns: Turns, log: Any, order: Order | None = None, scheduler: Scheduler | None = None) -> int:
    """What the loop of a rank does with a script: each turn takes in what arrives, plans, and commits tokens; and so on
    without messages until nothing waits or runs. `log.add` is given the plan of every turn, or None.

    order: of the waiting queue, in place of first come, first served. Returns how many requests have ended.
    """
    scheduler = scheduler or make_scheduler()
    if order is not None:  # the scheduler has no other place to put a policy of one's own
        common.scheduler.order_waiting = lambda waiting, *_: order(list(waiting))
    script = iter(turns)
    try:
        while (messages := next(script, None)) is not None or scheduler.has_work:
            for message in messages or ():
                if isinstance(message, AbortRequest):
                    scheduler.abort(message.rid)
                else:
                    scheduler.add(message)
            plan = scheduler.plan()
            log.add(plan)
            if plan is not None:
                scheduler.commit(plan, tokens_of(plan))
    finally:
        common.scheduler.order_waiting = common.policy.order_waiting
    return scheduler.finished_count


def tokens_of(plan: BatchPlan) -> list[int]:
    """In the model's place: the same plan gives the same tokens."""
    rng = random.Random(plan.turn)
    return [rng.randrange(1, 1000) for _ in range(plan.sampled_count())]


class PlanList:
    """A log that keeps the plans themselves."""

    def __init__(self) -> None:
        self.plans: list[BatchPlan | None] = []

    def add(self, plan: BatchPlan | None) -> None:
        self.plans.append(plan)


def first_difference(a: list[Any], b: list[Any]) -> int | None:
    """Number of the first turn (from 1) in which two lists differ, or in which only one of them has an item."""
    for turn, (x, y) in enumerate(zip(a, b, strict=False), 1):
        if x != y:
            return turn
    return None if len(a) == len(b) else min(len(a), len(b)) + 1
