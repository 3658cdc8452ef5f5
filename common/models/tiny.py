"""`tiny`: two Llama layers with seeded random weights and a byte tokenizer, so that engine tests take seconds.

Its text is noise, but it is always the same noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

VERSION = 1
SEED = 0
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 64, 2, 8, 4, 16, 256
BOS, EOS = "<|bos|>", "<|eos|>"
BOS_ID, EOS_ID, VOCAB = 256, 257, 258
# How far above "keeps the variance" the weights are. Attention has to weigh as much as the last token's embedding,
# or greedy decoding maps each token to its successor and runs in circles.
GAIN = 2.0
LOGIT_SPREAD = 3.0

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def build(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config())
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _save_tokenizer(folder / "tokenizer.json")


def _config() -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": MLP,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "dtype": "float32",
    }


def _weights() -> dict[str, np.ndarray]:
    import numpy as np

    # RandomState, not Generator: numpy promises that its stream never changes.
    rng = np.random.RandomState(SEED)

    def matrix(rows: int, columns: int, gain: float = GAIN) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)}
    for i in range(LAYERS):
        name = f"model.layers.{i}."
        weights[name + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        weights[name + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[name + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        weights[name + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        weights[name + "mlp.gate_proj.weight"] = matrix(MLP, HIDDEN)
        weights[name + "mlp.up_proj.weight"] = matrix(MLP, HIDDEN)
        weights[name + "mlp.down_proj.weight"] = matrix(HIDDEN, MLP)
        weights[name + "input_layernorm.weight"] = ones
        weights[name + "post_attention_layernorm.weight"] = ones
    weights["model.norm.weight"] = ones
    weights["lm_head.weight"] = matrix(VOCAB, HIDDEN, LOGIT_SPREAD)
    return weights


def _save_tokenizer(path: Path) -> None:
    """Token i is byte i."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in enumerate(_byte_alphabet())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (BOS, EOS)])
    tokenizer.save(str(path))


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: the printable ones stand for themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
