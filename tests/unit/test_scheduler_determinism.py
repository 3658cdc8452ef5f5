"""Two schedulers that are told the same agree at every turn, whatever the process they live in."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from common.digest import PlanDigest
from common.messages import GenerateRequest, SamplingParams, pack_ids
from common.scheduler import Scheduler, SchedulerConfig

ROOT = Path(__file__).parents[2]


def play(requests: int, policy: str) -> dict:
    """Mixed traffic on a small pool: the digest after each turn, and what happened."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_total_tokens=800,
            max_running_requests=24,
            context_length=400,
            chunked_prefill_size=64,
            policy=policy,
            radix=True,
            eos_token_ids=(0,),
            schedule_conservativeness=0.01,
        ),
        lambda ids, skip: " ".join(map(str, ids)),
    )
    evicted = [0]
    evict = scheduler.kv.tree.evict

    def counting(n):
        slots = evict(n)
        evicted[0] += len(slots)
        return slots

    scheduler.kv.tree.evict = counting
    rng = random.Random(7)
    texts = [[rng.randrange(1000) for _ in range(100)] for _ in range(8)]
    digest, digests, rids, sent, aborts, wave = PlanDigest(), [], [], 0, 0, 0
    while sent < requests or scheduler.has_work:
        # Waves, with idleness between them that resets the admission ratio, so that each is overcommitted again; a few
        # have bursts that take the queue over the limit of lpm.
        if sent == wave and not scheduler.has_work:
            wave = min(wave + rng.choice([20, 30, 300]), requests)
        burst = 160 if wave - sent > 200 and rng.random() < 0.1 else rng.choice([0, 0, 1, 2, 4])
        for _ in range(min(burst, wave - sent)):
            ids = rng.choice(texts)[: rng.randrange(1, 50)] + [rng.randrange(1000) for _ in range(rng.randrange(20))]
            sampling = SamplingParams(
                max_new_tokens=rng.randrange(100),
                seed=rng.randrange(100),
                stop=(" 17 1",) if rng.random() < 0.1 else (),
                stop_token_ids=(5,),
                ignore_eos=rng.random() < 0.5,
            )
            rids.append(f"request-{sent}")
            scheduler.add(GenerateRequest(rids[-1], pack_ids(ids), sampling, rng.random() < 0.5))
            sent += 1
        if rids and rng.random() < 0.05:
            aborts += scheduler.abort(rng.choice(rids[-60:]))
        plan = scheduler.plan()
        if plan is not None:
            digest.update(plan)
            digests.append(digest.value)
            scheduler.commit(plan, [rng.randrange(200) for _ in range(plan.sampled_count())])
    chunks = scheduler.take_chunks()
    ended = [[chunk.rid, chunk.finish.type, len(chunk.new_ids)] for chunk in chunks if chunk.finish]
    return {
        "digests": digests,
        "ended": ended,
        "evicted": evicted[0],
        "aborts": aborts,
        "retractions": scheduler.retraction_count,
    }


@pytest.mark.parametrize(("policy", "requests"), [("lpm", 2000), ("dfs-weight", 700), ("random", 700)])
def test_two_processes_with_different_hash_seeds_agree_at_every_turn(policy, requests):
    play_it = f"play({requests}, {policy!r})"
    code = f"import json; from tests.unit.test_scheduler_determinism import play; print(json.dumps({play_it}))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "4242")
    ]
    a, b = (json.loads(process.communicate(timeout=100)[0]) for process in processes)
    different = [turn for turn, (x, y) in enumerate(zip(a["digests"], b["digests"], strict=True), 1) if x != y]
    assert different[:1] == []
    assert a == b
    # The traffic is worth something only if all of this happened.
    assert len(a["ended"]) == requests
    assert {kind for _, kind, _ in a["ended"]} == {"abort", "length", "stop"}
    assert min(a["retractions"], a["aborts"]) > requests / 100
    assert a["evicted"] > 5 * requests
