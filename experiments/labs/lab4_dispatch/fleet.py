"""A fleet in virtual time: real schedulers with real radix caches, and a forward that takes what the roofline predicts.

Nothing sleeps and no clock is read, so the same requests and the same dispatcher give the same figures on any machine.
A replica takes in what lies in its inbox when a turn begins, as the replicas of 2024 drained their queues, and works as
long as it has anything to do. What arrives while a turn runs lies in the inbox until the next one: that is all that
the "queue" of `shortest_queue` was.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from common.batch import BatchPlan
from common.dispatch import BacklogDispatcher, Dispatcher
from common.messages import GenerateRequest, SamplingParams, pack_ids
from common.scheduler import Scheduler, SchedulerConfig
from common.sim.profiles import load_profile
from common.sim.roofline import Roofline

PROFILE = "h100-llama3-8b"  # a decode step takes about 5 ms
VOCABULARY = 32000


class Rule(Protocol):
    """What this lab asks of a dispatcher. The project's own is told how many requests ended; this one, which."""

    def pick(self, request: GenerateRequest) -> int: ...
    def finished(self, replica: int, rids: list[str]) -> None: ...
    def lose(self, replica: int) -> None: ...


class RoundRobin:
    """The project's, behind this lab's interface."""

    def __init__(self, replicas: int) -> None:
        self._dispatcher = Dispatcher("round_robin", replicas)

    def pick(self, request: GenerateRequest) -> int:
        return self._dispatcher.pick()

    def finished(self, replica: int, rids: list[str]) -> None:
        self._dispatcher.finished(replica, len(rids))

    def lose(self, replica: int) -> None:
        self._dispatcher.lose(replica)


class Backlog(RoundRobin):
    """`shortest_queue` as 0.1.17 and 0.2.0 had it, the bug of this lab."""

    def __init__(self, replicas: int, backlogs: Callable[[], list[int]]) -> None:
        self._dispatcher = BacklogDispatcher("shortest_queue", replicas, backlogs)


@dataclass
class Outcome:
    """Of each request, in the order in which they came: e2e, virtual seconds from its arrival to its end; slowness,
    that over its output tokens; picked, its replica."""

    e2e: list[float]
    slowness: list[float]
    picked: list[int]
    prompt_tokens: int
    cached_tokens: int
    replicas: int
    shares: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.shares = [self.picked.count(replica) / len(self.picked) for replica in range(self.replicas)]

    @property
    def p95(self) -> float:
        """Of the slowness, in virtual ms per token."""
        return 1e3 * float(np.percentile(self.slowness, 95))

    @property
    def cached(self) -> float:
        """Share of the prompt tokens that did not have to be computed."""
        return self.cached_tokens / self.prompt_tokens


class _Replica:
    def __init__(self, pool: int, running: int) -> None:
        config = SchedulerConfig(
            max_total_tokens=pool,
            max_running_requests=running,
            context_length=pool,
            chunked_prefill_size=2048,
            policy="fcfs",
            radix=True,
            eos_token_ids=(),
        )
        self.scheduler = Scheduler(config, None)
        self.inbox: list[GenerateRequest] = []
        self.plan: BatchPlan | None = None  # of the turn that runs


class Fleet:
    def __init__(self, replicas: int, pool: int = 8192, running: int = 4) -> None:
        """pool: KV slots of each replica; running: most requests in its batch. Both are small, so that they matter."""
        self._replicas = [_Replica(pool, running) for _ in range(replicas)]
        self._roofline = Roofline(load_profile(PROFILE), 1)
        self._events: list[tuple[float, int, int]] = []  # (when, order, replica whose turn ends, or -1: an arrival)
        self._order = 0

    def backlogs(self) -> list[int]:
        """Requests that each replica has been sent and has not taken in yet."""
        return [len(replica.inbox) for replica in self._replicas]

    def run(self, rule: Rule, arrivals: list[tuple[float, GenerateRequest]]) -> Outcome:
        """arrivals: (virtual second, request), in the order of time. Ends when every request has."""
        for when, _ in arrivals:
            self._push(when, -1)
        waiting = iter(arrivals)
        started, ended, picked = {}, {}, []
        prompt = cached = 0
        while self._events:
            now, _, who = heapq.heappop(self._events)
            if who < 0:
                _, request = next(waiting)
                started[request.rid] = now
                who = rule.pick(request)
                picked.append(who)
                self._replicas[who].inbox.append(request)
                if self._replicas[who].plan is None:
                    self._begin_turn(who, now)
                continue
            chunks = self._end_turn(who)
            for chunk in chunks:
                ended[chunk.rid] = now
                prompt += chunk.prompt_tokens
                cached += chunk.cached_tokens
            if chunks:
                rule.finished(who, [chunk.rid for chunk in chunks])
            self._begin_turn(who, now)
        e2e = [ended[rid] - started[rid] for rid in started]
        slowness = [
            seconds / request.sampling.max_new_tokens for seconds, (_, request) in zip(e2e, arrivals, strict=True)
        ]
        return Outcome(e2e, slowness, picked, prompt, cached, len(self._replicas))

    def _push(self, when: float, who: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, who))

    def _begin_turn(self, who: int, now: float) -> None:
        replica = self._replicas[who]
        for request in replica.inbox:
            replica.scheduler.add(request)
        replica.inbox.clear()
        replica.plan = replica.scheduler.plan()
        if replica.plan is not None:
            self._push(now + self._seconds(replica.plan), who)

    def _end_turn(self, who: int) -> list:
        """The last chunks of the requests that end with it."""
        replica = self._replicas[who]
        replica.scheduler.commit(replica.plan, np.zeros(replica.plan.sampled_count(), dtype=np.int32))
        return [chunk for chunk in replica.scheduler.take_chunks() if chunk.finish]

    def _seconds(self, plan: BatchPlan) -> float:
        if plan.prefill:
            return self._roofline.prefill_seconds(plan.prefill)
        rows = len(plan.decode_rows) // 4
        return self._roofline.decode_seconds(rows, 200 * rows)  # the KV is a small part of what a step reads


# ---------------------------------------------------------------------- requests


def make_request(rid: str, prompt: list[int], output: int) -> GenerateRequest:
    return GenerateRequest(rid, pack_ids(prompt), SamplingParams(max_new_tokens=output, ignore_eos=True))


def random_ids(rng: np.random.Generator, n: int) -> list[int]:
    return rng.integers(1, VOCABULARY, n).tolist()


def at_random(rng: np.random.Generator, requests: list[GenerateRequest], per_second: float) -> list:
    """A Poisson stream."""
    times = np.cumsum(rng.exponential(1 / per_second, len(requests)))
    return list(zip(times.tolist(), requests, strict=True))


def one_in_eight_is_long(seed: int, count: int, per_second: float, longer: int = 40) -> list:
    """Most requests have 16 prompt and 24 output tokens; the long ones `longer` times as many."""
    rng = np.random.default_rng(seed)
    factors = np.where(rng.random(count) < 1 / 8, longer, 1).tolist()
    requests = [make_request(f"r{i}", random_ids(rng, 16 * k), 24 * k) for i, k in enumerate(factors)]
    return at_random(rng, requests, per_second)


def conversations(seed: int, count: int, rounds: int, per_second: float, step: int = 200) -> list:
    """So many conversations that go on in turns at random; each prompt is all that was said before, and `step` tokens
    more."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.repeat(np.arange(count), rounds)).tolist()
    said: dict[int, list[int]] = {one: [] for one in range(count)}
    requests = []
    for i, one in enumerate(order):
        said[one] = said[one] + random_ids(rng, step)
        requests.append(make_request(f"r{i}", said[one], 8))
    return at_random(rng, requests, per_second)


def one_hot_prompt(seed: int, count: int, per_second: float, shared: int = 600) -> list:
    """All of them begin with the same `shared` tokens, and go on in their own way."""
    rng = np.random.default_rng(seed)
    head = random_ids(rng, shared)
    requests = [make_request(f"r{i}", head + random_ids(rng, 40), 40) for i in range(count)]
    return at_random(rng, requests, per_second)
