"""The tensors of one rank, read from a Hugging Face folder's safetensors files through mmap.

```
 q, k, v      rows by head, fused [q | k | v]; zero rows for padding, a shared KV head where heads are replicated
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
from safetensors import safe_open

from common.models.config import HeadLayout, ModelConfig, weight_files


@dataclass
class LayerWeights:
    """H hidden, Q and KV the rank's query and KV heads, D head_dim, I the rank's share of the MLP width."""

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(Q + 2 KV) * D, H]
    qkv_bias: torch.Tensor | None  # [(Q + 2 KV) * D]
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
        self._stack = ExitStack()
        self._file_of = {}
        for path in weight_files(config.path):
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except Exception as error:  # SafetensorError derives from Exception alone
                self._stack.close()
                raise ValueError(f"{path} is not a readable safetensors file ({error})") from None
            self._file_of.update(dict.fromkeys(file.keys(), file))

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
        gate_up = [
            self._part(mlp + name, (c.intermediate_size, c.hidden_size), 0, rank * inner, inner)
            for name in ("gate_proj.weight", "up_proj.weight")
        ]
        return LayerWeights(
            input_norm=self._vector(f"model.layers.{index}.input_layernorm.weight"),
            qkv=self._qkv(attn, "weight", (c.hidden_size,)),
            qkv_bias=self._qkv(attn, "bias", ()) if c.attention_bias else None,
            o=self._heads(attn + "o_proj.weight", 1, "q", (c.hidden_size,)),
            o_bias=self._vector(attn + "o_proj.bias") if c.attention_bias and rank == 0 else None,
            post_norm=self._vector(f"model.layers.{index}.post_attention_layernorm.weight"),
            gate_up=torch.cat(gate_up),
            down=self._part(mlp + "down_proj.weight", (c.hidden_size, c.intermediate_size), 1, rank * inner, inner),
        )

    def embedding(self) -> torch.Tensor:
        """[vocab, H]."""
        vocab = self.config.vocab_size
        return self._part("model.embed_tokens.weight", (vocab, self.config.hidden_size), 0, 0, vocab)

    def final_norm(self) -> torch.Tensor:
        """[H]."""
        return self._vector("model.norm.weight")

    def lm_head(self) -> torch.Tensor:
        """[ceil(vocab / tp), H]."""
        name = "model.embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"
        rows = -(-self.config.vocab_size // self.layout.tp_size)
        shape = (self.config.vocab_size, self.config.hidden_size)
        return self._part(name, shape, 0, self.rank * rows, rows)

    def _qkv(self, attn: str, suffix: str, rest: tuple[int, ...]) -> torch.Tensor:
        return torch.cat([self._heads(f"{attn}{x}_proj.{suffix}", 0, x, rest) for x in "qkv"])

    def _heads(self, name: str, dim: int, kind: str, rest: tuple[int, ...]) -> torch.Tensor:
        """The rank's query ("q") or KV heads along `dim`; `rest` is the size of the other dimension, if any."""
        c, layout = self.config, self.layout
        if kind == "q":
            total, first, count = c.num_heads, self.rank * layout.num_q_heads, layout.num_q_heads
        else:
            total, first, count = c.num_kv_heads, layout.first_kv_head(self.rank), layout.num_kv_heads
        length = (total * c.head_dim,)
        shape = length + rest if dim == 0 else rest + length
        return self._part(name, shape, dim, first * c.head_dim, count * c.head_dim)

    def _vector(self, name: str) -> torch.Tensor:
        # A copy: a view would keep the whole file mapped, and every page of it that was ever read.
        return self._part(name, (self.config.hidden_size,), 0, 0, self.config.hidden_size).clone()

    def _part(self, name: str, shape: tuple[int, ...], dim: int, start: int, count: int) -> torch.Tensor:
        """[start, start + count) along `dim` of a tensor of this shape; zeros where that is past its end."""
        if name not in self._file_of:
            raise ValueError(f"{self.config.path}: the weights have no {name}")
        source = self._file_of[name].get_slice(name)
        if tuple(source.get_shape()) != shape:
            raise ValueError(
                f"{self.config.path}: {name} is {source.get_shape()}, but config.json makes it {list(shape)}"
            )
        start, stop = min(start, shape[dim]), min(start + count, shape[dim])
        part = source[:, start:stop] if dim == 1 else source[start:stop]
        part = part.to(self.device, self.dtype)
        missing = count - (stop - start)
        if not missing:
            return part
        size = list(shape)
        size[dim] = missing
        return torch.cat([part, part.new_zeros(size)], dim)
