"""A GGUF file of the Llama, Qwen2 or Qwen3 family -> a Hugging Face folder with float32 weights.

Every loader then reads one format. The folder takes four bytes per weight, whatever the file's quantisation.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from common.models.config import load_config
from common.models.rope import DEFAULT_THETA, Llama3Scaling
from common.models.weights import check_weights

# Of the conversion: raise it when what `convert` writes changes, and every cache converts again.
VERSION = 1

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# llama.cpp's name of a tensor, without "blk.N." -> Hugging Face's, without "model.layers.N."
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Without `output` the embeddings are tied.
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# What llama.cpp reorders the rows of, for llama alone -> the number of heads in it.
REORDERED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}

# Llama 3.1 and later. A GGUF file holds only what the frequencies are divided by, not how that came about.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL_POSITIONS = 1.0, 4.0, 8192
ROPE_DIVISORS = "rope_freqs.weight"


def convert(source: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of the file into an empty folder. SmolLM2-135M takes about 15 s.

    ValueError of one line names what is wrong with the file, or what of it cannot run here.
    """
    tensors, metadata = _read(source)
    try:
        config = _config(metadata, tensors)
        _write_json(folder / "config.json", config)
        eos = {name: config[name] for name in ("bos_token_id", "eos_token_id") if name in config}
        _write_json(folder / "generation_config.json", eos)
        _save_tokenizer(source, folder)
        _save_weights(tensors, config, folder / "model.safetensors")
        check_weights(load_config(folder))
    except ValueError as error:
        # The folder's name is of no use to the reader: it is gone by then.
        raise ValueError(f"{source}: {str(error).removeprefix(f'{folder}: ')}") from None


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors by name, their data mapped, and the metadata that says what the model is."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
    except OSError as error:
        raise ValueError(f"cannot read {source} ({error.strerror})") from None
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{source} is not a whole GGUF file: it is truncated or damaged ({error})") from None
    wanted = ("general.architecture", "split.count", "tokenizer.ggml.model")
    fields = reader.fields
    metadata = {name: fields[name].contents() for name in wanted if name in fields}
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{source}: the architecture is {architecture}; {', '.join(ARCHITECTURES)} work")
    if metadata.get("split.count", 1) > 1:
        raise ValueError(f"{source} is one of {metadata['split.count']} parts; merge them with llama.cpp's gguf-split")
    prefix = f"{architecture}."
    metadata |= {name.removeprefix(prefix): f.contents() for name, f in fields.items() if name.startswith(prefix)}
    for name in ("bos", "eos", "eot"):
        if field := fields.get(f"tokenizer.ggml.{name}_token_id"):
            metadata[name] = field.contents()
    return {tensor.name: tensor for tensor in reader.tensors}, metadata


def _config(metadata: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """config.json. ValueError if the metadata lacks something, or asks for something that is not built."""
    _refuse_what_is_not_built(metadata)
    try:
        heads = metadata["attention.head_count"]
        config = {
            "architectures": [ARCHITECTURES[metadata["general.architecture"]]],
            "model_type": metadata["general.architecture"],
            "hidden_size": metadata["embedding_length"],
            "num_hidden_layers": metadata["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": metadata.get("attention.head_count_kv", heads),
            "head_dim": _head_dim(metadata),
            "intermediate_size": metadata["feed_forward_length"],
            "vocab_size": len(tensors["token_embd.weight"].data),
            "max_position_embeddings": metadata["context_length"],
            # The file holds it as float32: 9.999999747378752e-06 is 1e-05.
            "rms_norm_eps": float(f"{metadata['attention.layer_norm_rms_epsilon']:.6g}"),
            "rope_theta": metadata.get("rope.freq_base", DEFAULT_THETA),
            "hidden_act": "silu",
            "tie_word_embeddings": "output.weight" not in tensors,
        }
    except KeyError as error:
        raise ValueError(f"the file has no {error.args[0]}") from None
    except ArithmeticError as error:
        raise ValueError(f"the file's metadata make no model ({error})") from None
    if "bos" in metadata:
        config["bos_token_id"] = metadata["bos"]
    # An instruct model's answer ends in its end of turn, even where the file's end of sequence is another token.
    if ends := list(dict.fromkeys(metadata[name] for name in ("eos", "eot") if name in metadata)):
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    config["dtype"] = "float32"
    if config["model_type"] != "qwen2" and "blk.0.attn_q.bias" in tensors:
        config["attention_bias"] = True
    if ROPE_DIVISORS in tensors:
        config["rope_scaling"] = _llama3_scaling(config, tensors[ROPE_DIVISORS].data)
    return config


def _refuse_what_is_not_built(metadata: dict[str, Any]) -> None:
    for name in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(metadata.get(name), list):
            raise ValueError(f"its {name} differs from layer to layer; only models of equal layers work")
    if scaling := {metadata.get("rope.scaling.type", "none")} - {"none"}:
        raise ValueError(f"rope scaling of type {scaling.pop()} is not supported; only default and llama3 work")
    if metadata.get("expert_count"):
        raise ValueError(f"it has {metadata['expert_count']} experts; only models without experts work")
    if 0 < metadata.get("attention.sliding_window", 0) < metadata.get("context_length", 0):
        raise ValueError(f"its attention slides over {metadata['attention.sliding_window']} tokens; only full works")


def _head_dim(metadata: dict[str, Any]) -> int:
    sizes = [metadata[key] for key in ("attention.key_length", "attention.value_length") if key in metadata]
    sizes += [metadata[key] for key in ("rope.dimension_count",) if key in metadata]
    if len(set(sizes)) > 1:
        raise ValueError(f"its heads have sizes {sizes} of keys, values and rotated part; only equal ones work")
    return sizes[0] if sizes else metadata["embedding_length"] // metadata["attention.head_count"]


def _llama3_scaling(config: dict[str, Any], divisors: np.ndarray) -> dict[str, Any]:
    """The rope_scaling of config.json that gives these divisors of the frequencies, [head_dim / 2]."""
    scaling = Llama3Scaling(float(divisors.max()), LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL_POSITIONS)
    steps = np.arange(0, config["head_dim"], 2) / config["head_dim"]
    expected = [scaling.divisor(frequency) for frequency in config["rope_theta"] ** -steps]
    if divisors.shape != (len(expected),) or not np.allclose(divisors, expected, rtol=1e-4):
        raise ValueError(
            f"{ROPE_DIVISORS} is no llama3 scaling with low_freq_factor {LLAMA3_LOW:g}, high_freq_factor"
            f" {LLAMA3_HIGH:g} and {LLAMA3_ORIGINAL_POSITIONS} original positions; only default and such scaling work"
        )
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }


def _save_weights(tensors: dict[str, Any], config: dict[str, Any], path: Path) -> None:
    """model.safetensors, byte for byte as the safetensors package writes it, but one tensor in memory at a time."""
    named = sorted((*_hugging_face_name(name), name) for name in tensors if name != ROPE_DIVISORS)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, _, source in named:
        shape = [int(size) for size in reversed(tensors[source].shape)]
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, kind, source in named:
            file.write(_dequantised(tensors[source], kind, config).data)


def _dequantised(tensor: Any, kind: str, config: dict[str, Any]) -> np.ndarray:
    """float32, contiguous, with rows in Hugging Face's order. kind: as in LAYER_NAMES."""
    from gguf import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type).astype("<f4", copy=False)
    except NotImplementedError:
        raise ValueError(
            f"{tensor.name} is of type {tensor.tensor_type.name}, which the gguf package cannot dequantise"
        ) from None
    if config["model_type"] == "llama" and kind in REORDERED:
        values = _half_split(values, config[REORDERED[kind]])
    return np.ascontiguousarray(values)


def _hugging_face_name(name: str) -> tuple[str, str]:
    """blk.3.attn_q.weight -> (model.layers.3.self_attn.q_proj.weight, attn_q)."""
    match name.split("."):
        case ["blk", layer, kind, suffix] if kind in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[kind]}.{suffix}", kind
        case [kind, suffix] if kind in OTHER_NAMES:
            return f"{OTHER_NAMES[kind]}.{suffix}", kind
    raise ValueError(f"it has a tensor {name}, which no model of the families has")


def _half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of q and k rows: it keeps the two rows that rotate together side by side in a head,
    Hugging Face keeps the first ones in the head's first half and the second ones in the other. [heads * dim, ...]
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _save_tokenizer(source: Path, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers reads them from the GGUF file."""
    # AutoTokenizer finds the same class, but takes 7 s longer: it reads the whole metadata again for a config.
    from transformers import PreTrainedTokenizerFast

    # Under a link in a folder of its own: a tokenizer.json beside the file would be read in its place.
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "model.gguf").symlink_to(source)
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(alone, gguf_file="model.gguf")
        except MemoryError:
            raise
        except Exception as error:  # `tokenizers` raises nothing more special
            raise ValueError(f"transformers cannot make a tokenizer of it ({error!r})") from None
        tokenizer.save_pretrained(folder)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
