"""The forward of one rank: Llama, and Qwen2 and Qwen3, which differ from it by a bias and by norms of q and k.

Tensor parallelism as in Megatron-LM: a rank holds some heads and a slice of the MLP, and each of the two halves of a
layer ends in one all-reduce. Where keys and values live, and who may look at whom, is the caller's: see `forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from common.models.config import HeadLayout, ModelConfig
from common.models.linear import (
    Gate,
    HalfLinear,
    Linear,
    PackedGate,
    PackedLinear,
    activation_dtype,
    gate_for,
    linear_for,
    rms_norm,
)
from common.models.loader import ShardLoader

# (layer, q [N, Hq, D], k [N, Hkv, D], v [N, Hkv, D]) -> [N, Hq, D], with the heads of this rank
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

AnyLinear = Linear | PackedLinear | HalfLinear


class TensorParallel(Protocol):
    """The two collectives a forward needs; `common.parallel.collectives` has the bindings."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass
class Layer:
    input_norm: torch.Tensor
    qkv: AnyLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: AnyLinear
    post_norm: torch.Tensor
    gate: Gate | PackedGate
    down: AnyLinear


class Llama:
    def __init__(
        self,
        config: ModelConfig,
        layout: HeadLayout,
        rank: int,
        tp: TensorParallel,
        dtype: torch.dtype,
        device: torch.device | str,
        packed: bool,
        max_positions: int | None = None,
        loaded_layer: Callable[[], None] = lambda: None,
    ) -> None:
        """Load the shard of `rank` from config.path. packed: weights in the layout that `linear_for` finds fastest.

        max_positions: the forward's positions are below it; default: all that the model has. loaded_layer: called after
        each layer.
        """
        device = torch.device(device)
        self.config = config
        self.layout = layout
        self.tp = tp
        linear = linear_for(dtype, device) if packed else Linear
        self.dtype = activation_dtype(linear, dtype)
        self.layers: list[Layer] = []
        # One layer at a time: a packed weight is a copy, and both are in memory only for this long.
        with torch.inference_mode(), ShardLoader(config, layout, rank, dtype, device) as loader:
            for index in range(config.num_layers):
                weights = loader.layer(index)
                self.layers.append(
                    Layer(
                        input_norm=weights.input_norm.to(self.dtype),
                        qkv=linear(weights.qkv, weights.qkv_bias),
                        q_norm=_to(weights.q_norm, self.dtype),
                        k_norm=_to(weights.k_norm, self.dtype),
                        o=linear(weights.o, weights.o_bias),
                        post_norm=weights.post_norm.to(self.dtype),
                        gate=gate_for(linear, weights.gate_up),
                        down=linear(weights.down),
                    )
                )
                loaded_layer()
            self.norm = loader.final_norm().to(self.dtype)
            self.lm_head = linear(loader.lm_head())
        # Read through a mapping of its own, which stays: the pages of the other weights are let go with theirs.
        with ShardLoader(config, layout, rank, dtype, device) as loader:
            self.embedding = loader.embedding()
        self.cos, self.sin = _rope_tables(config, max_positions or config.max_position_embeddings, self.dtype, device)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, logit_rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits of the chosen rows, float32 [M, vocab], the same bits on every rank.

        input_ids, positions: int64 [N]; rows may belong to any number of sequences. logit_rows: int64 [M], M may be 0.
        `attend` is called once per layer, in order: it keeps k and v, and returns each row's attention output. q and k
        are rotated and q is not scaled; all three are views with strided rows.

        What `attend` is given and the logits are inference tensors: outside torch.inference_mode they can be read but
        not changed in place. Every rank must call this with the same N and M.
        """
        with torch.inference_mode():
            return self.logits(self.hidden(input_ids, positions, attend)[logit_rows])

    def hidden(self, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """`forward` up to the last layer's output, [N, H]. Called in inference mode."""
        x = F.embedding(input_ids, self.embedding).to(self.dtype)  # [N, H]
        rope = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)  # [N, 1, D] each
        for index, layer in enumerate(self.layers):
            hidden = rms_norm(x, layer.input_norm, self.config.rms_norm_eps)
            x += self.tp.all_reduce(self._attention(index, layer, hidden, rope, attend))
            hidden = rms_norm(x, layer.post_norm, self.config.rms_norm_eps)
            x += self.tp.all_reduce(layer.down(layer.gate(hidden)))
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """The rest of `forward` for rows of `hidden`, [M, H] -> float32 [M, vocab]. Called in inference mode."""
        if not len(x):
            return torch.empty(0, self.config.vocab_size, device=x.device)
        x = rms_norm(x, self.norm, self.config.rms_norm_eps)
        return self.tp.all_gather(self.lm_head(x))[:, : self.config.vocab_size].float()

    def _attention(
        self,
        index: int,
        layer: Layer,
        hidden: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        """hidden [N, H] -> this rank's part of the attention block's output, [N, H]."""
        q_heads, kv_heads = self.layout.num_q_heads, self.layout.num_kv_heads
        heads = layer.qkv(hidden).view(len(hidden), -1, self.config.head_dim)  # [N, Q + 2 KV, D]
        qk, v = heads.split([q_heads + kv_heads, kv_heads], dim=1)
        if self.config.qk_norm:
            q, k = qk.split([q_heads, kv_heads], dim=1)
            norms = (
                rms_norm(q, layer.q_norm, self.config.rms_norm_eps),
                rms_norm(k, layer.k_norm, self.config.rms_norm_eps),
            )
            qk = torch.cat(norms, dim=1)
        q, k = _rotate(qk, *rope).split([q_heads, kv_heads], dim=1)
        out = attend(index, q, k, v)
        return layer.o(out.reshape(len(hidden), -1))


def _to(weight: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if weight is None else weight.to(dtype)


def _rope_tables(
    config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position times frequency, as `_rotate` takes them, [positions, D] each: computed in float32,
    kept in `dtype`."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    frequencies = 1.0 / config.rope_theta ** (steps / config.head_dim)
    if scaling := config.rope_scaling:
        frequencies = frequencies / torch.tensor([scaling.divisor(f) for f in frequencies.tolist()])
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [N, heads, D], Hugging Face's order: element i of a head turns with element i + D / 2."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos).add_(torch.cat([second, first], dim=-1).mul_(sin))
