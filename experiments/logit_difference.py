"""The largest difference between this engine's logits and those of transformers, float32, at TP 1, 2 and 4.

    python -m experiments.logit_difference [--model-path smollm2]
    python -m experiments.logit_difference --families

Every position of 20 prompts with 16 greedy tokens of transformers behind each. The ranks are threads of this process
that meet in the same shared-memory collectives as processes do. With --families: random models of each family, with
prompts of random tokens; the difference of log-probabilities is given too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

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
TP_SIZES = (1, 2, 4)
# 3 KV heads, so that TP 2 and 4 pad; head_dim unlike hidden / heads.
RANDOM_SIZES = {
    "vocab_size": 2000,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 128,
    "max_position_embeddings": 512,
    "initializer_range": 1 / 576**0.5,  # keeps the variance
}
# Logits come out as large as SmolLM2's, up to about 50.
EMBEDDING_SCALE = 8.0
VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "untied, llama3 rope": {"rope_parameters": hf.SHORT_LLAMA3_ROPE},
}


def logits_of(config: ModelConfig, tp_size: int, sequences: list[list[int]]) -> list[torch.Tensor]:
    """float32 [tokens, vocab] of each sequence."""
    buffer = exchange_buffer(tp_size, SLOT_BYTES)
    layout = plan_heads(config, tp_size)

    def run_rank(rank: int) -> list[torch.Tensor]:
        tp = SingleRank() if tp_size == 1 else ShmCollectives(buffer, rank, tp_size, SLOT_BYTES)
        model = Llama(config, layout, rank, tp, torch.float32, torch.device("cpu"), packed=True)
        longest = max(map(len, sequences))
        group = layout.num_q_heads // layout.num_kv_heads
        attention = PagedAttention(
            config.num_layers, longest, layout.num_kv_heads, group, config.head_dim, torch.float32
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


def references(model: PreTrainedModel, prompts: list[list[int]]) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Each prompt with the greedy tokens behind it, and the logits of transformers at each of its positions."""
    sequences = [ids + hf.greedy(model, ids, NEW_TOKENS) for ids in prompts]
    with torch.inference_mode():
        return sequences, [model(torch.tensor([ids])).logits[0] for ids in sequences]


def compare(
    folder: Path, sequences: list[list[int]], expected: list[torch.Tensor]
) -> Iterator[tuple[int, float, float]]:
    """Per TP size the largest difference of a logit, and of a log-probability."""
    config = load_config(folder)
    for tp_size in TP_SIZES:
        actual = logits_of(config, tp_size, sequences)
        pairs = list(zip(actual, expected, strict=True))
        logits = max((a - e).abs().max().item() for a, e in pairs)
        log_probs = max((a.log_softmax(-1) - e.log_softmax(-1)).abs().max().item() for a, e in pairs)
        yield tp_size, logits, log_probs


def report(folder: Path, model: PreTrainedModel, prompts: list[list[int]]) -> None:
    sequences, expected = references(model, prompts)
    top = max(logits.abs().max().item() for logits in expected)
    print(f"{sum(map(len, sequences))} positions, logits up to {top:.1f} in absolute value")
    for tp_size, logits, log_probs in compare(folder, sequences, expected):
        print(f"TP {tp_size}: largest logit difference {logits:.2e}, of a log-probability {log_probs:.2e}", flush=True)


def report_families() -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, RANDOM_SIZES["vocab_size"], length).tolist() for length in range(4, 104, 5)]
    for family in hf.FAMILIES:
        for name, settings in VARIANTS.items():
            with tempfile.TemporaryDirectory() as folder:
                model = hf.random_model(family, **RANDOM_SIZES, **settings)
                with torch.no_grad():
                    model.get_output_embeddings().weight.mul_(EMBEDDING_SCALE)
                model.save_pretrained(folder)
                print(f"{family}, {name}: ", end="")
                report(Path(folder), hf.load(Path(folder)), prompts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", default="smollm2")
    parser.add_argument("--families", action="store_true", help="random models of the three families instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.families:
        return report_families()
    folder = resolve_model(options.model_path)
    tokenizer = Tokenizer(folder)
    return report(folder, hf.load(folder), [tokenizer.encode(text) for text in hf.PROMPTS])


if __name__ == "__main__":
    main()
