"""Greedy tokens and logits of Hugging Face transformers, one prompt at a time: what every stage must equal."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
# Llama 3.1's, but for a context so short that a test's positions see all three kinds of wavelengths.
SHORT_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

PROMPTS = [
    "The capital of France is",
    "A tokenizer turns text into",
    "Once upon a time there was a small",
    "def fibonacci(n):",
    "The three laws of thermodynamics are",
    "Paris, London and Berlin are",
    "import numpy as np\n\ndef mean(x):",
    "Q: What is 12 times 12?\nA:",
    "The quick brown fox",
    "In 1969, humans first",
    "La capitale de l'Italie est",
    "SELECT name FROM users WHERE",
    "Water boils at",
    "The opposite of hot is",
    "A list of prime numbers: 2, 3, 5,",
    "Dear Sir or Madam,",
    "The mitochondria is",
    "To make a cup of tea, first",
    "Roses are red, violets are",
    "The chapter begins with a long description of the harbour, where the boats lay side by side and the gulls",
]


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: PreTrainedModel, input_ids: list[int], new_tokens: int) -> list[int]:
    """Exactly `new_tokens` tokens, end-of-sequence ignored."""
    inputs = torch.tensor([input_ids])
    with torch.inference_mode():
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            min_new_tokens=None,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(input_ids) :].tolist()


def log_probabilities(model: PreTrainedModel, input_ids: list[int]) -> torch.Tensor:
    """float64 [n - 1, vocab]: row i is what the first i + 1 of the n tokens predict."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([input_ids])).logits[0, :-1].double(), -1)


def random_model(family: str, seed: int = 0, **settings: object) -> PreTrainedModel:
    """A model of a family with random weights, wide enough that its greedy output varies; settings are its config's.

    Norms and biases are random too: left at ones and zeros they would hide a mistake.
    """
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{"initializer_range": 0.2, **settings})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def small_model(family: str, kv_heads: int, tied: bool, **settings: object) -> PreTrainedModel:
    """Two layers, two query heads to a KV head. Untied ones have a head_dim unlike hidden / heads and llama3 rope."""
    return random_model(
        family,
        seed=kv_heads,
        **{
            "vocab_size": 258,
            "hidden_size": kv_heads * 2 * (16 if tied else 8),
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": kv_heads * 2,
            "num_key_value_heads": kv_heads,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "tie_word_embeddings": tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} if tied else SHORT_LLAMA3_ROPE,
            "bos_token_id": 256,
            "eos_token_id": 257,
            **settings,
        },
    )
