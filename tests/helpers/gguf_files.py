"""GGUF files as llama.cpp's converter writes them, from a transformers model, with a byte tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map
from gguf.quants import dequantize, quantize
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}
BYTES = [bytes_to_unicode()[byte] for byte in range(256)]
MERGES = ["h e", "Ġ t"]
# Token i is byte i, then the merges, then the special tokens.
TOKENS = [*BYTES, *(merge.replace(" ", "") for merge in MERGES), "<|bos|>", "<|eos|>"]
VOCAB, BOS, EOS = len(TOKENS), 258, 259
# What GGUF files can hold of llama3 rope.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write_gguf(model: PreTrainedModel, path: Path, kind: GGMLQuantizationType, **metadata: object) -> Path:
    """Write the file, matrices quantised as `kind`; `model` gets the weights that the file then holds.

    metadata: further keys, for what a file may also say; "." is spelled "__".
    """
    config = model.config
    writer = GGUFWriter(path, config.model_type)
    writer.add_name("a test's model")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if config.model_type == "qwen3":  # a file without it means hidden / heads
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _add_tokenizer(writer, config.model_type)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)]
        add(key.replace("__", "."), value)
    _add_tensors(writer, model, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, model_type: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if model_type == "llama" else "qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.NORMAL] * BOS + [TokenType.CONTROL] * 2)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(model_type == "llama")
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}<|eos|>{% endfor %}")


def _add_tensors(writer: GGUFWriter, model: PreTrainedModel, kind: GGMLQuantizationType) -> None:
    config = model.config
    names = get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if parameter.dim() == 2:
            packed = quantize(values, kind)
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(dequantize(packed, kind).astype(np.float32)))
        else:
            packed = values
        if config.model_type == "llama" and ".q_proj." in name:
            packed = _side_by_side(packed, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj." in name:
            packed = _side_by_side(packed, config.num_key_value_heads)
        as_kind = kind if parameter.dim() == 2 else GGMLQuantizationType.F32
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), packed, raw_dtype=as_kind)
    if config.rope_parameters["rope_type"] == "llama3":
        plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())


def _side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: within a head, row i of the first half, then row i of the second half."""
    out = np.empty_like(rows)
    half = len(rows) // heads // 2
    for head in range(heads):
        start = head * 2 * half
        for i in range(half):
            out[start + 2 * i] = rows[start + i]
            out[start + 2 * i + 1] = rows[start + half + i]
    return out
