"""The largest difference between this engine's logits and those of transformers, float32, at TP 1, 2 and 4.

    python -m experiments.logit_difference [--model-path smollm2]

Every position of 20 prompts with 16 greedy tokens of transformers behind each. The ranks are threads of this process
that meet in the same shared-memory collectives as processes do.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from common.attention import PagedAttention
from common.models.config import ModelConfig, load_config, plan_heads
from common.models.llama import Llama
from common.models.sources import resolve_model
from common.parallel.collectives import ShmCollectives, SingleRank
from common.parallel.group import SLOT_BYTES
from common.parallel.shared_memory import exchange_buffer
from common.tokenizer import Tokenizer
from experiments import transformers_reference as hf

NEW_TOKENS = 16


def logits_of(config: ModelConfig, tp_size: int, sequences: list[list[int]]) -> list[torch.Tensor]:
    """float32 [tokens, vocab] of each sequence."""
    buffer = exchange_buffer(tp_size, SLOT_BYTES)
    layout = plan_heads(config, tp_size)

    def run_rank(rank: int) -> list[torch.Tensor]:
        tp = SingleRank() if tp_size == 1 else ShmCollectives(buffer, rank, tp_size, SLOT_BYTES)
        model = Llama(config, layout, rank, tp, torch.float32, torch.device("cpu"), packed=True)
        longest = max(map(len, sequences))
        attention = PagedAttention(
            config.num_layers, longest, layout.num_kv_heads, config.head_dim, torch.float32, "cpu"
        )
        results = []
        with torch.inference_mode():
            for ids in sequences:
                attention.prepare_prefill([np.arange(len(ids), dtype=np.int32)], [0])
                everywhere = torch.arange(len(ids))
                logits = model.forward(torch.tensor(ids), everywhere, attention.attend, everywhere)
                results.append(logits.clone())
        return results

    with ThreadPoolExecutor(tp_size) as pool:
        return next(iter(list(pool.map(run_rank, range(tp_size)))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", default="smollm2")
    folder = resolve_model(parser.parse_args().model_path)
    torch.set_num_threads(1)
    config, tokenizer, reference = load_config(folder), Tokenizer(folder), hf.load(folder)
    sequences, expected = [], []
    for text in hf.PROMPTS:
        ids = tokenizer.encode(text)
        ids += hf.greedy(reference, ids, NEW_TOKENS)
        sequences.append(ids)
        with torch.inference_mode():
            expected.append(reference(torch.tensor([ids])).logits[0])
    top = max(logits.abs().max().item() for logits in expected)
    print(f"{sum(map(len, sequences))} positions, logits up to {top:.1f} in absolute value")
    for tp_size in (1, 2, 4):
        actual = logits_of(config, tp_size, sequences)
        largest = max((a - e).abs().max().item() for a, e in zip(actual, expected, strict=True))
        print(f"TP {tp_size}: largest logit difference {largest:.2e}")


if __name__ == "__main__":
    main()
