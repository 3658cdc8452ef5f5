"""Greedy tokens and logits of Hugging Face transformers, one prompt at a time: what every stage must equal."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

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


def load(folder: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: LlamaForCausalLM, input_ids: list[int], new_tokens: int) -> list[int]:
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


def log_probabilities(model: LlamaForCausalLM, input_ids: list[int]) -> torch.Tensor:
    """float64 [n - 1, vocab]: row i is what the first i + 1 of the n tokens predict."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([input_ids])).logits[0, :-1].double(), -1)


def write_random_llama(folder: Path, kv_heads: int, tied: bool, seed: int = 0) -> Path:
    """A randomly initialised Llama folder whose greedy output varies: embeddings and head drawn wide."""
    torch.manual_seed(seed + kv_heads)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=kv_heads * 2 * 16,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=kv_heads * 2,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
