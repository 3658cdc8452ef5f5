"""A prefix of 512 tokens served once before, then 16 requests with 16-token suffixes and 4 output tokens:
how much faster with the radix cache than without?

    python -m experiments.prefix_reuse [--stage peer] [--tp-size 1] [--repeats 5]

Two engines live at once and take turns, so that both meet the same machine; they are idle while the other works.
Prints the raw times and the ratio of each pair.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from evolution import Engine

PREFIX, SUFFIX, REQUESTS, OUTPUT = 512, 16, 16, 4


def measure(engine: Engine, rng: np.random.Generator) -> float:
    """Seconds for the 16 requests, after the prefix was served once. Every call uses ids not seen before."""
    vocab = engine.model_config.vocab_size
    prefix = rng.integers(0, vocab, PREFIX).tolist()
    prompts = [prefix + rng.integers(0, vocab, SUFFIX).tolist() for _ in range(REQUESTS)]
    sampling = {"temperature": 0, "max_new_tokens": OUTPUT, "ignore_eos": True}
    engine.generate(input_ids=prefix, sampling_params=sampling)
    began = time.perf_counter()
    engine.generate(input_ids=prompts, sampling_params=sampling)
    return time.perf_counter() - began


def compare(repeats: int, **settings: object) -> list[tuple[float, float]]:
    """(seconds with, seconds without) of each interleaved pair."""
    rng = np.random.default_rng(0)
    with Engine(**settings) as cached, Engine(disable_radix_cache=True, **settings) as plain:
        for engine in (cached, plain):
            measure(engine, rng)
        return [(measure(cached, rng), measure(plain, rng)) for _ in range(repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", default="peer")
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    pairs = compare(options.repeats, model_path="smollm2", stage=options.stage, tp_size=options.tp_size)
    for with_cache, without in pairs:
        print(f"with {with_cache:.3f} s  without {without:.3f} s  ratio {without / with_cache:.2f}")
    print(f"median ratio {statistics.median(without / with_cache for with_cache, without in pairs):.2f}")


if __name__ == "__main__":
    main()
