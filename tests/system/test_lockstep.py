"""All ranks plan the same batch, turn by turn, under load with aborts, retraction and eviction; no KV slot is lost.

The ranks are spawned, so each has a hash salt of its own (PYTHONHASHSEED is not set, which a test checks).
"""

from __future__ import annotations

import os
import random

import pytest

from evolution import Engine

POOL = 512


@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_600_mixed_requests(overlap):
    check("peer", 600, overlap=overlap)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheduling", ["replicated", "rank0"])
def test_2000_mixed_requests(stage, scheduling):
    check(stage, 2000, scheduling=scheduling)


def check(stage: str, count: int, **how: str | bool) -> None:
    assert "PYTHONHASHSEED" not in os.environ, "the ranks must draw their own hash salts"
    rng = random.Random(5)
    shared = [[rng.randrange(256) for _ in range(rng.randint(10, 60))] for _ in range(8)]
    prompts, params = [], []
    for _ in range(count):
        prompts.append(rng.choice(shared) + [rng.randrange(256) for _ in range(rng.randint(1, 20))])
        fields = {"max_new_tokens": rng.randint(0, 40), "temperature": rng.choice([0, 1]), "ignore_eos": True}
        if rng.random() < 0.2:
            fields |= {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "min_p": 0.02}
        params.append(fields)
    settings = {"max_total_tokens": POOL, "max_running_requests": 16, "chunked_prefill_size": 48}
    wanted = [index % 10 == 0 for index in range(count)]
    with Engine(model_path="tiny", stage=stage, tp_size=2, check_divergence=1, **how, **settings) as engine:
        _, requests = engine.make_requests(
            input_ids=prompts, sampling_params=params, return_logprob=wanted, logprob_start_len=0
        )
        streams = engine.submit(requests)
        for stream in streams[::9]:
            engine.abort(stream.rid)
        finishes = [stream.result()["meta_info"]["finish_reason"]["type"] for stream in streams]
        (stats,) = engine.stats()
    assert finishes.count("abort") > count // 20
    assert finishes.count("length") > count * 3 // 4
    assert stats["retractions"] > 0, "the pool never ran dry: nothing was tested"
    assert stats["finished"] >= count
    assert stats["free_tokens"] + stats["evictable_tokens"] == POOL
    assert stats["prompt_tokens"] > stats["cached_tokens"] > 0
