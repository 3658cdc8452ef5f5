"""What config.json says of a Llama, Qwen2 or Qwen3 model, and how its heads lie over tensor-parallel ranks.

Nothing here imports torch: the main process and the detokenizer read it too.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.models.rope import Llama3Scaling, read_rope

# The architectures that work, and what transformers takes for a key that config.json leaves out.
DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}
DEFAULT_RMS_NORM_EPS = 1e-6
# Of Qwen2 and Qwen3 with use_sliding_window.
DEFAULT_SLIDING_WINDOW, DEFAULT_MAX_WINDOW_LAYERS = 4096, 28
INDEX = "model.safetensors.index.json"
# The TP sizes that a refusal tries out for the reader.
LISTED_TP_SIZES = 16


@dataclass(frozen=True)
class ModelConfig:
    """Sizes are those of the whole model, not of a shard. `eos_token_ids` is empty if the model names none."""

    path: Path
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    rope_scaling: Llama3Scaling | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False  # an RMS norm over each head of q and k, before they are rotated


def load_config(folder: str | Path) -> ModelConfig:
    """The config of a Hugging Face folder. ValueError of one line for whatever this engine cannot run."""
    folder = Path(folder)
    values = read_json(folder, "config.json")
    try:
        config = _config_from(folder, values)
    except KeyError as error:
        raise ValueError(f"{folder}: config.json has no {error.args[0]}") from None
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if str(error).startswith(str(folder)):
            raise
        raise ValueError(f"{folder}: config.json has a value of the wrong type ({error})") from None
    _check_sizes(config)
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"{folder}: {config.num_heads} query heads cannot be shared out over {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise ValueError(f"{folder}: head_dim {config.head_dim} is odd, and rotary embedding needs pairs")
    weight_files(folder)
    return config


def _check_sizes(config: ModelConfig) -> None:
    for name in (
        "hidden_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"{config.path}: config.json gives {value!r} for {name}, which must be a whole number above 0"
            )
    for token in config.eos_token_ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < config.vocab_size:
            raise ValueError(
                f"{config.path}: eos_token_id must be one or a list of the tokens 0 to {config.vocab_size - 1},"
                f" not {token!r}"
            )
    for name in ("rms_norm_eps", "rope_theta"):
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{config.path}: config.json gives {value:g} for {name}, which must be above 0 and finite")
    if not isinstance(config.tie_word_embeddings, bool):
        raise ValueError(
            f"{config.path}: config.json gives {config.tie_word_embeddings!r} for tie_word_embeddings, which must be"
            " true or false"
        )


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: model.safetensors, or the shards that its index names."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    files = [folder / name for name in sorted(set(shard_of_tensor(folder).values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ValueError(f"{folder}: {INDEX} names missing shards: {', '.join(missing) or 'none'}")
    return files


def shard_of_tensor(folder: Path) -> dict[str, str]:
    """The index of sharded weights: the name of each tensor -> the name of its file."""
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder}: there is neither model.safetensors nor {INDEX}")
    shards = read_json(folder, INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(s, str) and Path(s).name == s for s in shards.values()):
        raise ValueError(f"{folder}: {INDEX} has no weight_map from tensor names to names of files in the folder")
    return shards


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder. ValueError if it is not there or is something else."""
    try:
        values = json.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{folder}: cannot read {name} ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{folder}: {name} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{folder}: {name} is not a JSON object")
    return values


def _config_from(folder: Path, values: dict[str, Any]) -> ModelConfig:
    architecture = _architecture(folder, values)
    values = {**DEFAULTS[architecture], **values}
    _refuse_what_is_not_built(folder, values)
    heads = values["num_attention_heads"]
    hidden_size = values["hidden_size"]
    rope_theta, rope_scaling = read_rope(folder, values)
    attention_bias = values.get("attention_bias", False)
    qwen2 = architecture == "Qwen2ForCausalLM"
    return ModelConfig(
        path=folder,
        hidden_size=hidden_size,
        num_layers=values["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or hidden_size // heads,
        intermediate_size=values["intermediate_size"],
        vocab_size=values["vocab_size"],
        max_position_embeddings=values["max_position_embeddings"],
        rms_norm_eps=float(values.get("rms_norm_eps", DEFAULT_RMS_NORM_EPS)),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=False if values.get("tie_word_embeddings") is None else values["tie_word_embeddings"],
        eos_token_ids=_eos_token_ids(folder, values),
        qkv_bias=qwen2 or attention_bias,
        o_bias=attention_bias and not qwen2,
        qk_norm=architecture == "Qwen3ForCausalLM",
    )


def _architecture(folder: Path, values: dict[str, Any]) -> str:
    architectures = values.get("architectures") or ["nothing"]
    if isinstance(architectures, str):
        architectures = [architectures]
    if len(architectures) != 1 or architectures[0] not in DEFAULTS:
        raise ValueError(f"{folder}: the architecture is {', '.join(architectures)}; {', '.join(DEFAULTS)} work")
    return architectures[0]


def _refuse_what_is_not_built(folder: Path, values: dict[str, Any]) -> None:
    if values.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{folder}: hidden_act is {values['hidden_act']}; only silu works")
    if values.get("mlp_bias"):
        raise ValueError(f"{folder}: mlp_bias is set; only MLPs without a bias work")
    if values.get("quantization_config"):
        raise ValueError(f"{folder}: the weights are quantized; only float32, float16 and bfloat16 weights work")
    if _slides(values):
        raise ValueError(
            f"{folder}: use_sliding_window is true and some layers slide (sliding_window, max_window_layers,"
            " layer_types); only full attention works"
        )


def _slides(values: dict[str, Any]) -> bool:
    """Whether a layer's attention really has a window. The published Qwen configs name one and switch it off."""
    if not values.get("use_sliding_window") or values.get("sliding_window", DEFAULT_SLIDING_WINDOW) is None:
        return False
    if layer_types := values.get("layer_types"):
        return any(kind != "full_attention" for kind in layer_types)
    return values.get("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS) < values["num_hidden_layers"]


def _eos_token_ids(folder: Path, values: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json goes before config.json, as it does in transformers."""
    eos = values.get("eos_token_id")
    if (folder / "generation_config.json").is_file():
        eos = read_json(folder, "generation_config.json").get("eos_token_id", eos)
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)


@dataclass(frozen=True)
class HeadLayout:
    """Which heads a rank holds. A KV head and its `group_size` query heads are one group, kept together.

    padded_groups   KV groups of all ranks; those past the model's own are zeros, which leaves the logits bit-identical
    kv_replicas     ranks that hold a copy of the same KV head and share its query heads; 1 unless TP exceeds them
    num_q_heads, num_kv_heads   of one rank, zeros included; the same on every rank

    A rank's query heads start at rank * num_q_heads, its KV heads at `first_kv_head(rank)`, in the model's order.
    """

    tp_size: int
    padded_groups: int
    kv_replicas: int
    num_q_heads: int
    num_kv_heads: int

    def first_kv_head(self, rank: int) -> int:
        return rank * self.num_kv_heads // self.kv_replicas


def plan_heads(config: ModelConfig, tp_size: int) -> HeadLayout:
    """The layout for `tp_size` ranks. ValueError names the reason and the sizes that work."""
    reason = _why_not(config, tp_size)
    if reason:
        working = [str(size) for size in range(1, LISTED_TP_SIZES + 1) if not _why_not(config, size)]
        raise ValueError(
            f"{config.path.name} cannot run at TP {tp_size}: {reason};"
            f" of 1 to {LISTED_TP_SIZES}, what works is TP {', '.join(working)}"
        )
    group_size = config.num_heads // config.num_kv_heads
    padded = _padded(config.num_kv_heads, tp_size)
    if padded < 2 * config.num_kv_heads:
        per_rank = padded // tp_size
        return HeadLayout(tp_size, padded, 1, per_rank * group_size, per_rank)
    replicas = tp_size // config.num_kv_heads
    return HeadLayout(tp_size, config.num_kv_heads, replicas, group_size // replicas, 1)


def _why_not(config: ModelConfig, tp_size: int) -> str | None:
    if tp_size < 1:
        return "it takes at least one rank"
    if config.intermediate_size % tp_size:
        return f"its MLP width {config.intermediate_size} is not a multiple of {tp_size}"
    groups = config.num_kv_heads
    if _padded(groups, tp_size) < 2 * groups:
        return None
    if tp_size % groups:
        return f"its {groups} KV heads would be padded to {_padded(groups, tp_size)}, twice as many or more"
    group_size = config.num_heads // groups
    if group_size % (tp_size // groups):
        return f"the {group_size} query heads of a KV head cannot be shared out over {tp_size // groups} copies of it"
    return None


def _padded(groups: int, tp_size: int) -> int:
    return -(-groups // tp_size) * tp_size
