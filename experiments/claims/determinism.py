"""Ranks that plan alike, and what makes them plan or sample apart."""

from __future__ import annotations

import random
from typing import Any

from common.args import EngineArgs
from evolution.engine import EngineError
from experiments.bench.engines import start
from experiments.claims.bounds import at_least, exactly
from experiments.claims.trial import Samples, Trial

POOL = 512  # tokens: so few that prefixes are evicted, in an order that the ranks could see differently
REQUESTS = 200
TOKENS = 20
DIVERGED = "planned another batch than rank 0"


def _settings(**more: Any) -> EngineArgs:
    return EngineArgs(stage="peer", tp_size=2, model_path="tiny", chunked_prefill_size=48, **more)


def under_load(**more: Any) -> tuple[bool, dict[str, Any]]:
    """Whether the ranks' plans differed in some turn, each of which is compared; and the counts of the run if not."""
    rng = random.Random(5)
    shared = [[rng.randrange(1, 250) for _ in range(rng.randint(10, 60))] for _ in range(8)]
    prompts = [rng.choice(shared) + [rng.randrange(1, 250) for _ in range(rng.randint(1, 20))] for _ in range(REQUESTS)]
    params = [
        {"max_new_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 1]), "ignore_eos": True} for _ in prompts
    ]
    with start(_settings(check_divergence=1, max_total_tokens=POOL, max_running_requests=16, **more)) as engine:
        try:
            engine.generate(input_ids=prompts, sampling_params=params)
            return False, engine.stats()[0]
        except EngineError as error:
            if DIVERGED not in str(error):
                raise
            return True, {}


def _equal_input_equal_batches() -> Samples:
    runs = [under_load(schedule_policy=policy) for policy in ("lpm", "random")]
    broken, _ = under_load(fault="TP1: own clock at turn 20")
    return [
        [diverged for diverged, _ in runs],
        [stats.get("turns", 0) for _, stats in runs],
        [_evicted(stats) for _, stats in runs],
        [broken],
    ]


def _evicted(stats: dict[str, Any]) -> float:
    return (stats["prompt_tokens"] - stats["cached_tokens"]) / POOL if stats else 0


def sampled(fault: str | None = None) -> list[int]:
    """Of one request at temperature 1, as rank 0 gave it; all ranks have the same seed unless the fault says
    otherwise."""
    params = {"max_new_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True, "stop": "never to be seen"}
    with start(_settings(max_total_tokens=4096, fault=fault, watchdog_timeout=5.0)) as engine:
        return engine.generate(input_ids=[5, 6, 7], sampling_params=params)["output_ids"]


def _more_than_a_seed() -> Samples:
    clean, again = sampled(), sampled()
    changed = [
        sum(a != b for a, b in zip(clean, tokens, strict=True))
        for tokens in (again, sampled("TP0: own seed at turn 1"), sampled("TP0: noise 5 at turn 1"))
    ]
    broken, _ = under_load(random_seed=7, fault="TP1: own clock at turn 20")
    return [[changed[0]], [changed[1]], [changed[2]], [broken]]


TRIALS = [
    Trial(
        21,
        f"peer at TP 2, all ranks with one seed: {TOKENS} tokens at temperature 1, undisturbed and disturbed",
        (
            exactly("tokens that differ between two runs alike", 0),
            at_least("tokens that rank 0 gives otherwise with a seed of its own", 1),
            at_least("tokens that rank 0 gives otherwise with the one seed, but noise on its own logits", 1),
            exactly("engines whose ranks plan apart with the one seed, but a cache's clock of rank 1's own", 1),
        ),
        10.0,
        _more_than_a_seed,
    ),
    Trial(
        59,
        f"peer at TP 2, {REQUESTS} mixed requests, policies lpm and random, plans compared in every turn",
        (
            exactly("engines whose ranks planned apart", 0),
            at_least("turns compared", 100),
            at_least("prompt tokens computed, over those that the cache holds, which evicts the rest", 2),
            exactly("engines whose ranks planned apart with one cache's clock set back", 1),
        ),
        12.0,
        _equal_input_equal_batches,
    ),
]
