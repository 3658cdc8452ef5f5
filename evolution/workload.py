"""What `run` sends: prompts, token ids, or random requests; and when."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

from common.messages import GenerateRequest
from evolution.requests import RequestMaker

BUILT_IN_PROMPTS = [
    "The capital of France is",
    "A tokenizer turns text into",
    "Once upon a time there was a small",
    "def fibonacci(n):",
]


DEFAULT_INPUT_LEN = 64
DEFAULT_TOKENS = 32
MOST_IDS = 10_000_000  # of all requests: a list of them takes 80 MB


@dataclass(frozen=True)
class Workload:
    """requests[i] is sent `send_at[i]` seconds after the start. `dataset_name` as in sglang.bench_serving."""

    dataset_name: str
    requests: list[GenerateRequest]
    send_at: list[float]
    request_rate: float


def make_workload(options: argparse.Namespace, make_requests: RequestMaker) -> Workload:
    """Build and check the whole workload. Raises ValueError of one line."""
    given = [name for name in ("prompt", "input_ids", "num_prompts") if getattr(options, name) is not None]
    if len(given) > 1:
        raise ValueError(f"give one of --prompt, --input-ids and --num-prompts, not {len(given)} of them")
    for name in ("input_len", "output_len") if options.num_prompts is None else ("max_new_tokens",):
        if getattr(options, name) is not None:
            other = "goes with" if options.num_prompts is None else "does not go with"
            raise ValueError(f"--{name.replace('_', '-')} {other} --num-prompts")
    if math.isnan(options.request_rate) or options.request_rate <= 0:
        raise ValueError(f"--request-rate must be above 0, not {options.request_rate}")
    sampling = {"temperature": options.temperature, "top_p": options.top_p, "top_k": options.top_k}
    if options.num_prompts is not None:
        name, prompts, ids = "random-ids", None, _random_ids(options, make_requests.config.vocab_size)
        sampling |= {"max_new_tokens": _or(options.output_len, DEFAULT_TOKENS), "ignore_eos": True}
    elif options.input_ids is not None:
        name, prompts, ids = "input-ids", None, [_parse_ids(text) for text in options.input_ids]
        sampling |= {"max_new_tokens": _or(options.max_new_tokens, DEFAULT_TOKENS)}
    else:
        name, prompts, ids = "prompts", options.prompt or BUILT_IN_PROMPTS, None
        sampling |= {"max_new_tokens": _or(options.max_new_tokens, DEFAULT_TOKENS)}
    count = len(prompts or ids)
    params = [dict(sampling) for _ in range(count)]
    if options.seed is not None:
        for index, fields in enumerate(params):
            fields["seed"] = options.seed + index
    _, requests = make_requests(prompts, params, ids, stream=True)
    return Workload(name, requests, _arrivals(count, options), options.request_rate)


def _random_ids(options: argparse.Namespace, vocab_size: int) -> list[list[int]]:
    input_len = _or(options.input_len, DEFAULT_INPUT_LEN)
    for name, value in (("num-prompts", options.num_prompts), ("input-len", input_len)):
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, not {value}")
    if options.num_prompts * input_len > MOST_IDS:
        raise ValueError(
            f"--num-prompts {options.num_prompts} of --input-len {input_len}: at most {MOST_IDS:,} token ids"
        )
    random = np.random.default_rng(abs(options.random_seed))
    return random.integers(0, vocab_size, (options.num_prompts, input_len)).tolist()


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--input-ids {text!r}: give token ids separated by commas, like 1,2,3") from None


def _arrivals(count: int, options: argparse.Namespace) -> list[float]:
    if math.isinf(options.request_rate):
        return [0.0] * count
    gaps = np.random.default_rng(abs(options.random_seed)).exponential(1 / options.request_rate, count)
    return (np.cumsum(gaps) - gaps[0]).tolist()


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
