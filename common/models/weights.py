"""Which tensors a model's safetensors files must hold, and whether they do.

Only the files' headers are read, and without torch: what a rank could not load is refused before there is one.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open

from common.models.config import INDEX, ModelConfig, shard_of_tensor, weight_files

DTYPES = ("F32", "F16", "BF16")


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The name of each tensor that a forward needs -> its shape, of the whole model."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        attn, mlp = layer + "self_attn.", layer + "mlp."
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            attn + "q_proj.weight": (q, hidden),
            attn + "k_proj.weight": (kv, hidden),
            attn + "v_proj.weight": (kv, hidden),
            attn + "o_proj.weight": (hidden, q),
            layer + "post_attention_layernorm.weight": (hidden,),
            mlp + "gate_proj.weight": (inner, hidden),
            mlp + "up_proj.weight": (inner, hidden),
            mlp + "down_proj.weight": (hidden, inner),
        }
        if config.qkv_bias:
            shapes |= {attn + "q_proj.bias": (q,), attn + "k_proj.bias": (kv,), attn + "v_proj.bias": (kv,)}
        if config.o_bias:
            shapes[attn + "o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes |= {attn + "q_norm.weight": (config.head_dim,), attn + "k_norm.weight": (config.head_dim,)}
    return shapes


def open_weights(folder: Path, framework: str, stack: ExitStack) -> dict[str, Any]:
    """Each tensor's name -> the open safetensors file that holds it, until `stack` closes. framework: "pt" or "numpy".

    ValueError names a file that cannot be read, or a tensor that the index puts where it is not.
    """
    files, names = {}, {}
    for path in weight_files(folder):
        try:
            file = stack.enter_context(safe_open(path, framework=framework))
        except Exception as error:  # SafetensorError derives from Exception alone
            raise ValueError(f"{path} is not a readable safetensors file ({error})") from None
        files[path.name] = file
        names[path.name] = set(file.keys())
    if "model.safetensors" in files:
        return dict.fromkeys(names["model.safetensors"], files["model.safetensors"])
    shards = shard_of_tensor(folder)
    for name, shard in shards.items():
        if name not in names[shard]:
            raise ValueError(f"{folder}: {INDEX} says that {name} is in {shard}, and it is not")
    return {name: files[shard] for name, shard in shards.items()}


def tensor_slice(config: ModelConfig, file_of: dict[str, Any], name: str, shape: tuple[int, ...]) -> Any:
    """safetensors' lazy slice of a tensor. ValueError if it is missing, of another shape, or of integers."""
    if name not in file_of:
        raise ValueError(f"{config.path}: the weights have no {name}")
    source = file_of[name].get_slice(name)
    if tuple(source.get_shape()) != shape:
        raise ValueError(f"{config.path}: {name} is {source.get_shape()}, but config.json makes it {list(shape)}")
    if source.get_dtype() not in DTYPES:
        raise ValueError(f"{config.path}: {name} is of type {source.get_dtype()}; {', '.join(DTYPES)} work")
    return source


def check_weights(config: ModelConfig) -> None:
    """ValueError of one line if the weights of config.path cannot be read, or are not those config.json describes."""
    with ExitStack() as stack:
        file_of = open_weights(config.path, "numpy", stack)
        for name, shape in expected_shapes(config).items():
            tensor_slice(config, file_of, name, shape)
