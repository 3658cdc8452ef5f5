"""SmolLM2 as converted from its GGUF file, against transformers. The first run converts (15 s, 538 MB)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from common.models.config import load_config, plan_heads
from common.models.llama import Llama
from common.models.smollm2 import MISSING
from common.models.sources import resolve_model
from common.tokenizer import Tokenizer
from tests.unit.test_loader import CLOSE, OneSequence, ThreadRank, greedy, load, run_ranks

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 3, 4, 5,",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return resolve_model("smollm2")
    except ValueError as error:
        if str(error) != MISSING:
            raise
        pytest.skip(MISSING)


@pytest.fixture(scope="module")
def model(folder: Path) -> Llama:
    return load(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_config(folder: Path) -> None:
    config = load_config(folder)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size) == (9, 3, 64, 576)
    assert (config.num_layers, config.intermediate_size, config.vocab_size) == (30, 1536, 49152)
    assert (config.rope_theta, config.rms_norm_eps, config.max_position_embeddings) == (1e5, 1e-5, 8192)
    assert (config.eos_token_ids, config.tie_word_embeddings) == ((2,), True)


def test_logits_equal_transformers(folder: Path, model: Llama, reference: LlamaForCausalLM) -> None:
    tokenizer = Tokenizer(folder)
    largest = 0.0
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        tokens, logits = greedy(model, ids, 6)
        with torch.no_grad():
            expected = reference(torch.tensor([ids + tokens[:-1]])).logits[0]
        assert expected[len(ids) - 1 :].argmax(-1).tolist() == tokens
        largest = max(largest, (logits - expected).abs().max().item())
    print(f"largest logit difference: {largest:.2e}")
    assert largest < 5 * CLOSE  # 30 layers, logits up to about 30


def test_it_knows_its_way_around(folder: Path, model: Llama) -> None:
    """Whatever the loader and transformers might agree on being wrong about, such as the order of q and k rows."""
    tokenizer = Tokenizer(folder)
    assert tokenizer.decode(greedy(model, tokenizer.encode(PROMPTS[0]), 1)[0]) == " Paris"
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is 2 + 2? Answer with a number only."}])
    answer = greedy(model, tokenizer.encode(prompt, add_special_tokens=False), 8)[0]
    assert "4" in tokenizer.decode(answer)


def test_padded_ranks_agree(folder: Path, model: Llama) -> None:
    """At TP 4 the fourth rank holds nothing but padding."""
    config = load_config(folder)
    ids = torch.tensor(Tokenizer(folder).encode(PROMPTS[0]))
    last = torch.tensor([len(ids) - 1])

    def work(tp: ThreadRank) -> torch.Tensor:
        shard = Llama(config, plan_heads(config, 4), tp.rank, tp, torch.float32, "cpu", True)
        return shard.forward(ids, torch.arange(len(ids)), OneSequence(), last)

    alone = model.forward(ids, torch.arange(len(ids)), OneSequence(), last)
    for logits in run_ranks(4, work):
        assert (logits - alone).abs().max() < 5 * CLOSE
