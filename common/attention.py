"""Attention over a paged KV pool (page size 1) whose result does not depend on what else is in the batch.

On a CPU, a token's output is bit-equal whether its request runs alone or with others, is prefilled in one piece, in
chunks of any size or after a cached prefix, or is decoded, with any number of threads. Ordinary matrix products do
not give that: the kernel, and with it the order of the sums, is chosen by the shape. What gives it (measured: no
difference in thousands of random cases; `tests/unit/test_attention.py`):

1. A key length is padded to a multiple of 16, the query rows of a KV head (tokens times heads of its group) to a
   multiple of 4. Padding reads a slot of zeros; its scores are -inf, so it adds exact zeros.
2. Scores are one bmm over the head dimension, which never changes. Queries are independent rows: a long prefill is
   cut into tiles of them.
3. Probabilities times values is the product whose inner length is the context. It is summed in blocks of 128 keys,
   in order, so that a longer (padded) context only appends blocks of zeros.

All of it is computed in float32, whatever the dtype of the pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

KEY_PADDING = 16
ROW_PADDING = 4
VALUE_BLOCK = 128
QUERY_TILE = 128

# Decode gathers the keys of several sequences at once, up to this many tokens with padding. Measured, ms a layer for
# 16 sequences of 600 tokens (SmolLM2, Zen3, one thread): 7.9 at 512, 5.6 at 2048, 8.5 all at once, when what was
# gathered has left the core's cache before the products read it.
DECODE_SPAN_TOKENS = 2048


class _Tile(NamedTuple):
    """Query tokens [first, last) of the batch, which see the first `keys` keys of their span."""

    first: int
    last: int
    keys: int
    mask: torch.Tensor  # [sequences, tokens per sequence, 1, keys] float32: 0 where a query sees a key, else -inf


class _Span(NamedTuple):
    """Sequences whose keys and values are gathered together, each padded to `length` tokens."""

    index: torch.Tensor  # [2 * kv_heads * sequences * length] rows of a layer's pool
    length: int
    tiles: list[_Tile]


class PagedAttention:
    """The KV pool of one rank: `pool_size` slots, each one token's keys and values in all layers.

    `prepare_prefill` or `prepare_decode` once per turn, then `attend` once per layer. head_dim is the last
    dimension of q, k and v; the number of query heads is a multiple of kv_heads, and query heads [g * i, g * (i + 1))
    share KV head i.
    """

    def __init__(
        self,
        num_layers: int,
        pool_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.pool_size = pool_size
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.device = torch.device(device)
        # Slot `pool_size` is the zeros that padding reads. The others are first touched when they are first written.
        self._pool = torch.empty((num_layers, 2 * kv_heads, pool_size + 1, head_dim), dtype=dtype, device=device)
        self._pool[:, :, pool_size] = 0
        # A layer as rows [2 * kv_heads * (pool_size + 1), head_dim], the key heads before the value heads: one gather
        # yields [2 * kv_heads, tokens, head_dim].
        self._layer_rows = self._pool.flatten(1, 2).unbind()
        self._head_offsets = np.arange(2 * kv_heads, dtype=np.int64) * (pool_size + 1)
        self._new_index = torch.empty(0, dtype=torch.long)
        self._spans: list[_Span] = []
        self._workspace: torch.Tensor

    def prepare_prefill(self, slots: list[np.ndarray], starts: list[int]) -> None:
        """The batch is, per sequence i, its tokens [starts[i], len(slots[i])); slots[i] are those of all its tokens."""
        self._spans = []
        first = 0
        for table, start in zip(slots, starts, strict=True):
            length = _round_up(len(table), KEY_PADDING)
            padded = np.full((1, length), self.pool_size, dtype=np.int64)
            padded[0, : len(table)] = table
            tiles = []
            for begin in range(start, len(table), QUERY_TILE):
                end = min(begin + QUERY_TILE, len(table))
                keys = _round_up(end, KEY_PADDING)
                mask = self._mask(np.arange(begin, end)[None], keys)
                tiles.append(_Tile(first, first + end - begin, keys, mask))
                first += end - begin
            self._spans.append(_Span(self._rows_of(padded), length, tiles))
        self._finish_preparing(np.concatenate([table[start:] for table, start in zip(slots, starts, strict=True)]))

    def prepare_decode(self, slot_table: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> None:
        """The batch is the last of the lengths[i] tokens of sequence i, whose slots are slot_table[rows[i]].

        slot_table int32 [any, width]; rows and lengths int [sequences].
        """
        self._spans = []
        first = 0
        while first < len(rows):
            last = self._span_end(lengths, first)
            span_lengths = lengths[first:last]
            length = _round_up(int(span_lengths.max()), KEY_PADDING)
            padded = np.full((last - first, length), self.pool_size, dtype=np.int64)
            width = min(length, slot_table.shape[1])
            seen = np.arange(width) < span_lengths[:, None]
            padded[:, :width][seen] = slot_table[rows[first:last], :width][seen]
            mask = self._mask(span_lengths[:, None] - 1, length)
            self._spans.append(_Span(self._rows_of(padded), length, [_Tile(first, last, length, mask)]))
            first = last
        self._finish_preparing(slot_table[rows, lengths - 1])

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend: q [N, q_heads, D], k and v [N, kv_heads, D] -> [N, q_heads, D].

        N are the tokens of the prepared batch, in its order.
        """
        pool_rows = self._layer_rows[layer]
        new = torch.cat([k.transpose(0, 1), v.transpose(0, 1)]).view(-1, self.head_dim)
        pool_rows.index_copy_(0, self._new_index, new.to(pool_rows.dtype))
        out = torch.empty_like(q)
        for span in self._spans:
            keys, values = self._gather(pool_rows, span)
            for tile in span.tiles:
                self._attend_tile(q[tile.first : tile.last], keys, values, tile, out[tile.first : tile.last])
        return out

    def _attend_tile(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: _Tile, out: torch.Tensor
    ) -> None:
        """q and out [sequences * tokens, q_heads, D]; keys and values [kv_heads * sequences, length, D]."""
        sequences, tokens = tile.mask.shape[:2]
        group = q.shape[1] // self.kv_heads
        rows = tokens * group
        by_token = (sequences, tokens, self.kv_heads, group, self.head_dim)
        by_head = (self.kv_heads, sequences, tokens, group)
        # [kv_heads * sequences, rows and their padding, D]
        scaled = keys.new_zeros(len(keys), _round_up(rows, ROW_PADDING), self.head_dim)
        torch.mul(
            q.float().view(by_token).permute(2, 0, 1, 3, 4),
            self.head_dim**-0.5,
            out=scaled[:, :rows].view(*by_head, self.head_dim),
        )
        scores = torch.bmm(scaled, keys[:, : tile.keys].transpose(1, 2))
        scores[:, :rows].view(*by_head, tile.keys).add_(tile.mask)
        probabilities = torch.softmax(scores, dim=-1)
        summed = torch.bmm(probabilities[:, :, :VALUE_BLOCK], values[:, : min(VALUE_BLOCK, tile.keys)])
        for key in range(VALUE_BLOCK, tile.keys, VALUE_BLOCK):
            end = min(key + VALUE_BLOCK, tile.keys)
            summed.baddbmm_(probabilities[:, :, key:end], values[:, key:end])
        out.view(by_token).copy_(summed[:, :rows].view(*by_head, self.head_dim).permute(1, 2, 0, 3, 4))

    def _gather(self, pool_rows: torch.Tensor, span: _Span) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [kv_heads * sequences, length, D] float32 each; valid until the next gather."""
        out = self._workspace[: len(span.index)]
        if pool_rows.dtype == torch.float32:
            torch.index_select(pool_rows, 0, span.index, out=out)
        else:
            out.copy_(pool_rows.index_select(0, span.index))
        keys, values = out.view(-1, span.length, self.head_dim).chunk(2)
        return keys, values

    def _span_end(self, lengths: np.ndarray, first: int) -> int:
        """The largest `last` so that sequences [first, last), padded alike, fit DECODE_SPAN_TOKENS; at least one."""
        longest = np.maximum.accumulate(_round_up(lengths[first:], KEY_PADDING))
        padded_tokens = longest * np.arange(1, len(longest) + 1)
        return first + max(1, int(np.searchsorted(padded_tokens, DECODE_SPAN_TOKENS, side="right")))

    def _mask(self, positions: np.ndarray, keys: int) -> torch.Tensor:
        """positions [sequences, tokens] of the queries: each sees the keys up to its own position."""
        hidden = np.arange(keys) > positions[:, :, None, None]
        return torch.from_numpy(np.where(hidden, np.float32("-inf"), np.float32(0))).to(self.device)

    def _rows_of(self, slots: np.ndarray) -> torch.Tensor:
        """Slots of any shape -> the rows of a layer's pool, [2 * kv_heads * slots.size]."""
        rows = self._head_offsets[:, None] + slots.reshape(1, -1)
        return torch.from_numpy(rows.reshape(-1)).to(self.device)

    def _finish_preparing(self, new_slots: np.ndarray) -> None:
        self._new_index = self._rows_of(new_slots)
        shape = (max(len(span.index) for span in self._spans), self.head_dim)
        self._workspace = torch.empty(shape, dtype=torch.float32, device=self.device)


def _round_up(n, multiple: int):
    return -(-n // multiple) * multiple
