"""The tensors of one rank, read from a Hugging Face folder's safetensors files through mmap.

```
 q, k, v      rows by head, fused [q | k | v]; zero rows for padding, a shared KV head where heads are replicated;
              their biases alike
 q, k norms   whole on each rank: every head has the same
 o            columns by head; zero columns for padding
 gate, up     rows, fused [gate | up]
 down         columns
 embedding    whole on each rank: a lookup is cheap, and in float32 the ranks share the mapped file
 lm_head      rows of the vocabulary; zero rows up to a multiple of TP
```
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import torch

from common.models.config import HeadLayout, ModelConfig
from common.models.weights import expected_shapes, open_weights, tensor_slice


@dataclass
class LayerWeights:
    """H hidden, Q and KV the rank's query and KV heads, D head_dim, I the rank's share of the MLP width."""

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(Q + 2 KV) * D, H]
    qkv_bias: torch.Tensor | None  # [(Q + 2 KV) * D]
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    o: torch.Tensor  # [H, Q * D]
    o_bias: torch.Tensor | None  # [H], on rank 0 only: the ranks' outputs are added up
    post_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2 * I, H]
    down: torch.Tensor  # [H, I]


class ShardLoader:
    """Reads what `rank` holds, as `dtype` on `device`. A context manager: what it gave may be used after it closed."""

    def __init__(
        self, config: ModelConfig, layout: HeadLayout, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.layout = layout
        self.rank = rank
        self.dtype = dtype
        self.device = device
        self._shapes = expected_shapes(config)
        self._stack = ExitStack()
        with self._stack:  # closes what is open if a file cannot be read
            self._file_of = open_weights(config.path, "pt", self._stack)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> ShardLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def layer(self, index: int) -> LayerWeights:
        c, rank = self.config, self.rank
        attn, mlp = f"model.layers.{index}.self_attn.", f"model.layers.{index}.mlp."
        inner = c.intermediate_size // self.layout.tp_size
        gate_up = [self._part(mlp + name, 0, rank * inner, inner) for name in ("gate_proj.weight", "up_proj.weight")]
        return LayerWeights(
            input_norm=self._vector(f"model.layers.{index}.input_layernorm.weight"),
            qkv=self._qkv(attn, "weight"),
            qkv_bias=self._qkv(attn, "bias") if c.qkv_bias else None,
            q_norm=self._vector(attn + "q_norm.weight") if c.qk_norm else None,
            k_norm=self._vector(attn + "k_norm.weight") if c.qk_norm else None,
            o=self._heads(attn + "o_proj.weight", 1, "q"),
            o_bias=self._vector(attn + "o_proj.bias") if c.o_bias and rank == 0 else None,
            post_norm=self._vector(f"model.layers.{index}.post_attention_layernorm.weight"),
            gate_up=torch.cat(gate_up),
            down=self._part(mlp + "down_proj.weight", 1, rank * inner, inner),
        )

    def embedding(self) -> torch.Tensor:
        """[vocab, H]."""
        return self._part("model.embed_tokens.weight", 0, 0, self.config.vocab_size)

    def final_norm(self) -> torch.Tensor:
        """[H]."""
        return self._vector("model.norm.weight")

    def lm_head(self) -> torch.Tensor:
        """[ceil(vocab / tp), H]."""
        name = "model.embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"
        rows = -(-self.config.vocab_size // self.layout.tp_size)
        return self._part(name, 0, self.rank * rows, rows)

    def _qkv(self, attn: str, suffix: str) -> torch.Tensor:
        return torch.cat([self._heads(f"{attn}{x}_proj.{suffix}", 0, x) for x in "qkv"])

    def _heads(self, name: str, dim: int, kind: str) -> torch.Tensor:
        """The rank's query ("q") or KV heads along `dim`."""
        layout, head_dim = self.layout, self.config.head_dim
        if kind == "q":
            first, count = self.rank * layout.num_q_heads, layout.num_q_heads
        else:
            first, count = layout.first_kv_head(self.rank), layout.num_kv_heads
        return self._part(name, dim, first * head_dim, count * head_dim)

    def _vector(self, name: str) -> torch.Tensor:
        # A copy: a view would keep the whole file mapped, and every page of it that was ever read.
        return self._part(name, 0, 0, self._shapes[name][0]).clone()

    def _part(self, name: str, dim: int, start: int, count: int) -> torch.Tensor:
        """[start, start + count) along `dim` of a tensor; zeros where that is past its end."""
        shape = self._shapes[name]
        source = tensor_slice(self.config, self._file_of, name, shape)
        start, stop = min(start, shape[dim]), min(start + count, shape[dim])
        part = source[:, start:stop] if dim == 1 else source[start:stop]
        part = part.to(self.device, self.dtype)
        missing = count - (stop - start)
        if not missing:
            return part
        size = list(shape)
        size[dim] = missing
        return torch.cat([part, part.new_zeros(size)], dim)
