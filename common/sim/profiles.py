"""Profiles of `--device sim`: what a GPU can do, and the sizes of the model that it is said to run.

The built-in ones hold data sheet peaks, so their forwards are shorter than real ones: a lower bound of the forward, and
with it an upper bound of the control plane's share. A profile of one's own is a JSON file with the same fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from common.memory import USABLE_FRACTION, kv_bytes_per_token, weight_bytes
from common.models.config import ModelConfig, plan_heads

DEFAULT_PROFILE = "h100-qwen3-0.6b"

Size = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class SimModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes as config.json names them."""

    name: str
    hidden_size: Size
    num_layers: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    intermediate_size: Size
    vocab_size: Size

    @property
    def config(self) -> ModelConfig:
        """For what is computed from sizes alone: head layouts, bytes of weights and KV."""
        return ModelConfig(
            path=Path(self.name),
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=1,  # these four play no part in a size
            rms_norm_eps=1.0,
            rope_theta=1.0,
            tie_word_embeddings=False,
            eos_token_ids=(),
        )


class SimProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One accelerator per rank, all alike.

    device              its name, for the reader
    dtype               of weights, KV cache and activations
    memory_bytes        of one accelerator
    memory_bandwidth    bytes/s
    flops               floating-point operations/s of a matrix multiplication in dtype
    link_bandwidth      bytes/s that a rank sends to its neighbour in a ring
    collective_latency  seconds of a collective of no bytes, without its hops
    hop_latency         seconds of each step around the ring
    fixed_seconds       of each forward, whatever is in it
    token_seconds       of each token that a forward computes, beside the matrix multiplications
    key_seconds         of each pair of a token and one that it attends to, beside reading and multiplying them
    """

    device: str
    dtype: Literal["float32", "bfloat16"]
    memory_bytes: Positive
    memory_bandwidth: Positive
    flops: Positive
    link_bandwidth: Positive
    collective_latency: Seconds
    hop_latency: Seconds
    model: SimModel
    fixed_seconds: Seconds = 0.0
    token_seconds: Seconds = 0.0
    key_seconds: Seconds = 0.0


# https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json
LLAMA3_8B = SimModel(
    name="Llama-3-8B",
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
)
# https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json
QWEN3_06B = SimModel(
    name="Qwen3-0.6B",
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=151936,
)

# NCCL's own model of its latency (src/graph/tuning.cc, releases for Hopper and Blackwell): ring algorithm, LL protocol,
# over NVLink, a base of 6.6 us and 0.6 us a step.
NCCL_BASE_LATENCY, NCCL_HOP_LATENCY = 6.6e-6, 0.6e-6


def _h100(model: SimModel) -> SimProfile:
    # NVIDIA H100 Tensor Core GPU data sheet, column H100 SXM: 80 GB, 3.35 TB/s, BF16 1,979 TFLOPS with sparsity, which
    # is 989 without, NVLink 900 GB/s in both directions together.
    return SimProfile(
        device="NVIDIA H100 SXM 80GB",
        dtype="bfloat16",
        memory_bytes=80e9,
        memory_bandwidth=3.35e12,
        flops=989e12,
        link_bandwidth=450e9,
        collective_latency=NCCL_BASE_LATENCY,
        hop_latency=NCCL_HOP_LATENCY,
        model=model,
    )


def _a100(model: SimModel) -> SimProfile:
    # NVIDIA A100 Tensor Core GPU data sheet, column A100 80GB SXM: 80 GB, 2,039 GB/s, BF16 312 TFLOPS without sparsity,
    # NVLink 600 GB/s in both directions together.
    return SimProfile(
        device="NVIDIA A100 SXM 80GB",
        dtype="bfloat16",
        memory_bytes=80e9,
        memory_bandwidth=2.039e12,
        flops=312e12,
        link_bandwidth=300e9,
        collective_latency=NCCL_BASE_LATENCY,
        hop_latency=NCCL_HOP_LATENCY,
        model=model,
    )


PROFILES = {
    "h100-llama3-8b": _h100(LLAMA3_8B),
    "h100-qwen3-0.6b": _h100(QWEN3_06B),
    "a100-llama3-8b": _a100(LLAMA3_8B),
    "a100-qwen3-0.6b": _a100(QWEN3_06B),
}


def load_profile(name: str) -> SimProfile:
    """A built-in profile, or that of a JSON file. ValueError of one line if it is neither, or not a whole profile."""
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith(".json"):
        raise ValueError(f"there is no profile {name!r}: choose {', '.join(PROFILES)}, or give a .json file")
    try:
        profile = msgspec.json.decode(Path(name).expanduser().read_bytes(), type=SimProfile)
    except OSError as error:
        raise ValueError(f"profile {name}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"profile {name}: {error}") from None
    model = profile.model
    if model.num_heads % model.num_kv_heads:
        raise ValueError(
            f"profile {name}: {model.num_heads} query heads cannot be shared out over {model.num_kv_heads} KV heads"
        )
    return profile


def kv_tokens(profile: SimProfile, tp_size: int) -> int:
    """The KV pool of a replica, in tokens: what its weights leave of each rank's memory. 0 if they do not fit."""
    config = profile.model.config
    layout = plan_heads(config, tp_size)
    room = int(profile.memory_bytes * USABLE_FRACTION) - weight_bytes(config, layout, profile.dtype)
    return max(0, room // kv_bytes_per_token(config, layout, profile.dtype))
