"""What `bench mechanisms` sends: requests as they travel in the project, and one payload of its yardsticks.

Every process makes the same messages for itself, so that a receiver can tell whether it got them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.messages import GenerateRequest, ImageData, SamplingParams, pack_ids

PROMPT, VOCAB = 512, 49152  # tokens of a request; token ids are below this
SIZES = {"1 KiB": 1 << 10, "16 KiB": 1 << 14, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22, "16 MiB": 1 << 24}
# Of `bench image`: powers of 4, and what would travel in an image's place if the ranks could look it up by its hash.
IMAGES = {"hash": 32, **{f"{4**n} KiB": 4**n << 10 for n in range(5)}, **{f"{4**n} MiB": 4**n << 20 for n in range(3)}}
REQUESTS = {"0": 0, "1": 1, "16": 16}
LISTS = "16 lists"  # 16 requests as SGLang had them: ids in a Python list, everything pickled
STEPS = {"1 KiB": 40, "16 KiB": 40, "256 KiB": 20, "1 MiB": 10, "4 MiB": 5, "16 MiB": 3}  # timed in a round
REQUEST_STEPS = 60
LONGEST = SIZES["16 MiB"] + (1 << 16)  # bytes of an encoded payload, at most


@dataclass
class ListRequest:
    """A request with its ids in a Python list, which is what pickle is slow at."""

    rid: str
    input_ids: list[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: list[str]
    stream: bool


def make_messages(payload: str) -> list[Any]:
    rng = np.random.default_rng(0)
    if payload in IMAGES:
        # Random bytes, since a photograph is compressed already: rpyc's zlib finds nothing to save.
        data = rng.bytes(IMAGES[payload])
        image = ImageData(data, hashlib.sha256(data).hexdigest())
        return [GenerateRequest("r0", pack_ids(range(16)), SamplingParams(), image=image)]
    prompts = rng.integers(0, VOCAB, (16, PROMPT))
    if payload == LISTS:
        return [ListRequest(f"r{i}", ids.tolist(), 16, 0.0, 1.0, -1, [], True) for i, ids in enumerate(prompts)]
    chosen = prompts[: REQUESTS[payload]]
    return [GenerateRequest(f"r{i}", pack_ids(ids), SamplingParams(16, 0.0), True) for i, ids in enumerate(chosen)]


def warm_and_timed(payload: str) -> tuple[int, int]:
    """Steps of a round: first those that are not timed, then those that are."""
    steps = STEPS.get(payload, REQUEST_STEPS)
    return max(1, steps // 6), steps


def nominal_bytes(payload: str) -> int:
    return IMAGES.get(payload) or 2100 * REQUESTS.get(payload, 16)
