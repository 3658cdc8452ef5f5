"""Seeded messages for bare ranks. Given; nothing to edit."""

from __future__ import annotations

import random

from common.messages import AbortRequest, FlushRequest, GenerateRequest, ImageData, Request, SamplingParams, pack_ids


def mixed_messages(count: int, seed: int, longest: int = 400) -> list[Request]:
    """Requests of up to `longest` tokens, with aborts and flushes among them."""
    rng = random.Random(seed)
    messages: list[Request] = []
    for index in range(count):
        kind = rng.random()
        if kind < 0.7:
            ids = [rng.randrange(256) for _ in range(rng.randint(1, longest))]
            messages.append(GenerateRequest(f"r{index}", pack_ids(ids), SamplingParams(seed=index)))
        elif kind < 0.9:
            messages.append(AbortRequest(index, f"r{rng.randrange(index + 1)}"))
        else:
            messages.append(FlushRequest(index))
    return messages


def one_request(seed: int) -> Request:
    return GenerateRequest(f"one{seed}", pack_ids([1, 2, seed]), SamplingParams(seed=seed))


def with_image(nbytes: int, seed: int) -> Request:
    """A request that carries so many random bytes."""
    data = random.Random(seed).randbytes(nbytes)
    return GenerateRequest(f"image{seed}", pack_ids([1, 2, 3]), SamplingParams(), image=ImageData(data, "0" * 64))


def bursts(messages: list[Request], seed: int, largest: int = 6) -> list[list[Request]]:
    """Cut into pieces of 1 to `largest`."""
    rng = random.Random(seed)
    pieces = []
    while messages:
        size = rng.randint(1, largest)
        pieces.append(messages[:size])
        messages = messages[size:]
    return pieces
