"""Seeded workloads for `tiny`."""

from __future__ import annotations

import random


def mixed(count: int, seed: int = 0, vocab: int = 256, longest: int = 80) -> tuple[list[list[int]], list[dict]]:
    """Prompts of random ids, some with a shared beginning, and sampling parameters: greedy and sampled in turn, some
    with penalties, min_p or a minimum length."""
    rng = random.Random(seed)
    shared = [rng.randrange(vocab) for _ in range(40)]
    prompts, params = [], []
    for index in range(count):
        ids = [rng.randrange(vocab) for _ in range(rng.randint(1, longest))]
        prompts.append(shared + ids if index % 3 == 0 else ids)
        fields: dict = {"max_new_tokens": rng.randint(1, 24), "temperature": 0.0}
        if index % 2:
            fields |= {
                "temperature": 1.0,
                "top_p": rng.choice([1.0, 0.9]),
                "top_k": rng.choice([-1, 20]),
                "min_p": rng.choice([0.0, 0.05]),
                "seed": index,
            }
        if index % 5 == 2:
            fields |= {"repetition_penalty": rng.choice([0.8, 1.5]), "presence_penalty": 0.5}
        if index % 5 == 4:
            fields |= {"frequency_penalty": 1.5, "min_new_tokens": fields["max_new_tokens"] // 2}
            fields["stop_token_ids"] = [rng.randrange(vocab) for _ in range(40)]
        params.append(fields)
    return prompts, params
