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

# Up to so many gathered numbers a turn's attention runs on one thread: waking a second one, which each product would do
# anew, takes longer than what it then helps with.
SMALL = 1 << 18


class _Tile(NamedTuple):
    """Query tokens [first, last) of the batch, which see the first `keys` keys of their span, and views of buffers.

    S sequences of T query tokens each, one of the two numbers being 1. A KV head of a sequence is one matrix of the
    batched products, B = kv_heads * S; its rows are R = T * group queries and padding. What the padding rows hold does
    not matter, since it stays in these rows. All views are made once per turn, for all layers.
    """

    first: int
    last: int
    shape: tuple[int, ...]  # S, T, kv_heads, group, D: as q has them
    mask: torch.Tensor  # [S, T, 1, keys]: 0 where a query sees a key, else -inf
    keys: torch.Tensor  # [B, D, keys]
    values: list[torch.Tensor]  # blocks of VALUE_BLOCK keys: [B, VALUE_BLOCK or less, D]
    queries: torch.Tensor  # [B, R, D]
    scores: torch.Tensor  # [B, R, keys]
    probabilities: torch.Tensor  # [B, R, keys]
    blocks: list[torch.Tensor]  # the probabilities in blocks: [B, R, VALUE_BLOCK or less]
    summed: torch.Tensor  # [B, R, D]
    real_queries: torch.Tensor  # without the padding rows, [kv_heads, S, T, group, D]
    real_scores: torch.Tensor  # [kv_heads, S, T, group, keys]
    real_summed: torch.Tensor  # [S, T, kv_heads, group, D]


class _Span(NamedTuple):
    """Sequences whose keys and values are gathered together, each padded to one length."""

    index: torch.Tensor  # [2 * kv_heads * sequences * length] rows of a layer's pool
    stored: torch.Tensor  # [len(index), D] in the pool's dtype: what a gather fills, until the next one
    wide: torch.Tensor  # the same in float32
    tiles: list[_Tile]


class PagedAttention:
    """The KV pool of one rank: `pool_size` slots, each one token's keys and values in all layers.

    `prepare_prefill` or `prepare_decode` once per turn, then `attend` once per layer. head_dim is the last
    dimension of q, k and v; query heads [group * i, group * (i + 1)) share KV head i.
    """

    def __init__(
        self,
        num_layers: int,
        pool_size: int,
        kv_heads: int,
        group: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        self.pool_size = pool_size
        self.kv_heads = kv_heads
        self.group = group
        self.head_dim = head_dim
        # Slot `pool_size` is the zeros that padding reads. The others are first touched when they are first written.
        self._pool = torch.empty((num_layers, 2 * kv_heads, pool_size + 1, head_dim), dtype=dtype)
        self._pool[:, :, pool_size] = 0
        # A layer as rows [2 * kv_heads * (pool_size + 1), head_dim], the key heads before the value heads: one gather
        # yields [2 * kv_heads, tokens, head_dim].
        self._layer_rows = self._pool.flatten(1, 2).unbind()
        self._head_offsets = np.arange(2 * kv_heads, dtype=np.int64) * (pool_size + 1)
        self._new_index = torch.empty(0, dtype=torch.long)
        self._spans: list[_Span] = []
        self._small = False

    def prepare_prefill(self, slots: list[np.ndarray], starts: list[int]) -> None:
        """The batch is, per sequence i, its tokens [starts[i], len(slots[i])); slots[i] are those of all its tokens."""
        spans = []
        first = 0
        for table, start in zip(slots, starts, strict=True):
            padded = np.full((1, _round_up(len(table), KEY_PADDING)), self.pool_size, dtype=np.int64)
            padded[0, : len(table)] = table
            tiles = []
            for begin in range(start, len(table), QUERY_TILE):
                end = min(begin + QUERY_TILE, len(table))
                tiles.append((first, np.arange(begin, end)[None]))
                first += end - begin
            spans.append((padded, tiles))
        self._prepare(np.concatenate([table[start:] for table, start in zip(slots, starts, strict=True)]), spans)

    def prepare_decode(self, slot_table: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> None:
        """The batch is the last of the lengths[i] tokens of sequence i, whose slots are slot_table[rows[i]].

        slot_table int32 [any, width]; rows and lengths int [sequences].
        """
        spans = []
        first = 0
        while first < len(rows):
            last = self._span_end(lengths, first)
            span_lengths = lengths[first:last]
            length = _round_up(int(span_lengths.max()), KEY_PADDING)
            padded = np.full((last - first, length), self.pool_size, dtype=np.int64)
            width = min(length, slot_table.shape[1])
            seen = np.arange(width) < span_lengths[:, None]
            padded[:, :width][seen] = slot_table[rows[first:last], :width][seen]
            spans.append((padded, [(first, span_lengths[:, None] - 1)]))
            first = last
        self._prepare(slot_table[rows, lengths - 1], spans)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend: q [N, q_heads, D], k and v [N, kv_heads, D] -> [N, q_heads, D].

        N are the tokens of the prepared batch, in its order.
        """
        pool_rows = self._layer_rows[layer]
        new = torch.cat([k.transpose(0, 1), v.transpose(0, 1)]).view(-1, self.head_dim)
        pool_rows.index_copy_(0, self._new_index, new.to(pool_rows.dtype))
        out = torch.empty_like(q)
        threads = torch.get_num_threads()
        if self._small:
            torch.set_num_threads(1)
        try:
            for span in self._spans:
                torch.index_select(pool_rows, 0, span.index, out=span.stored)
                if span.wide is not span.stored:
                    span.wide.copy_(span.stored)
                for tile in span.tiles:
                    _attend_tile(q[tile.first : tile.last], tile, out[tile.first : tile.last])
        finally:
            torch.set_num_threads(threads)
        return out

    def _span_end(self, lengths: np.ndarray, first: int) -> int:
        """The largest `last` so that sequences [first, last), padded alike, fit DECODE_SPAN_TOKENS; at least one."""
        longest = np.maximum.accumulate(_round_up(lengths[first:], KEY_PADDING))
        padded_tokens = longest * np.arange(1, len(longest) + 1)
        return first + max(1, int(np.searchsorted(padded_tokens, DECODE_SPAN_TOKENS, side="right")))

    def _prepare(self, new_slots: np.ndarray, spans: list[tuple[np.ndarray, list[tuple[int, np.ndarray]]]]) -> None:
        """Per span its slots with padding [S, length] and its tiles: where a tile begins in the batch, and the
        positions [S, T] of its queries."""
        self._new_index = self._rows_of(new_slots)
        gathered = 2 * self.kv_heads * max(slots.size for slots, _ in spans)
        self._small = len(spans) == 1 and gathered * self.head_dim <= SMALL
        stored = torch.empty(gathered, self.head_dim, dtype=self._pool.dtype)
        wide = stored if stored.dtype == torch.float32 else torch.empty(gathered, self.head_dim)
        shapes = [self._product_shape(positions) for _, tiles in spans for _, positions in tiles]
        # Padding rows compute with what is left in here by another tile: zeros at first, later finite numbers.
        queries, summed = torch.zeros(2, max(b * r for b, r, _ in shapes), self.head_dim)
        scores, probabilities = torch.empty(2, max(b * r * keys for b, r, keys in shapes))
        self._spans = []
        for slots, tiles in spans:
            n = 2 * self.kv_heads * slots.size
            keys, values = wide[:n].view(-1, slots.shape[1], self.head_dim).chunk(2)
            made = [self._tile(*tile, keys, values, queries, summed, scores, probabilities) for tile in tiles]
            self._spans.append(_Span(self._rows_of(slots), stored[:n], wide[:n], made))

    def _product_shape(self, positions: np.ndarray) -> tuple[int, int, int]:
        """B, R and the number of keys."""
        sequences, tokens = positions.shape
        keys = _round_up(int(positions.max()) + 1, KEY_PADDING)
        return self.kv_heads * sequences, _round_up(tokens * self.group, ROW_PADDING), keys

    def _tile(
        self,
        first: int,
        positions: np.ndarray,
        keys: torch.Tensor,
        values: torch.Tensor,
        queries: torch.Tensor,
        summed: torch.Tensor,
        scores: torch.Tensor,
        probabilities: torch.Tensor,
    ) -> _Tile:
        """keys and values [B, length, D] of the span; the buffers are cut to the tile."""
        sequences, tokens = positions.shape
        matrices, rows, width = self._product_shape(positions)
        queries, summed = (buffer[: matrices * rows].view(matrices, rows, -1) for buffer in (queries, summed))
        scores, probabilities = (
            buffer[: matrices * rows * width].view(matrices, rows, width) for buffer in (scores, probabilities)
        )
        real = (self.kv_heads, sequences, tokens, self.group, -1)
        real_queries, real_scores, real_summed = (
            buffer[:, : tokens * self.group].view(real) for buffer in (queries, scores, summed)
        )
        hidden = np.arange(width) > positions[:, :, None, None]
        return _Tile(
            first,
            first + positions.size,
            (sequences, tokens, self.kv_heads, self.group, self.head_dim),
            torch.from_numpy(np.where(hidden, np.float32("-inf"), np.float32(0))),
            keys[:, :width].transpose(1, 2),
            list(values[:, :width].split(VALUE_BLOCK, dim=1)),
            queries,
            scores,
            probabilities,
            list(probabilities.split(VALUE_BLOCK, dim=2)),
            summed,
            real_queries,
            real_scores,
            real_summed.permute(1, 2, 0, 3, 4),
        )

    def _rows_of(self, slots: np.ndarray) -> torch.Tensor:
        """Slots of any shape -> the rows of a layer's pool, [2 * kv_heads * slots.size]."""
        rows = self._head_offsets[:, None] + slots.reshape(1, -1)
        return torch.from_numpy(rows.reshape(-1))


def _attend_tile(q: torch.Tensor, tile: _Tile, out: torch.Tensor) -> None:
    """q and out [S * T, q_heads, D]."""
    torch.mul(q.float().view(tile.shape).permute(2, 0, 1, 3, 4), tile.shape[-1] ** -0.5, out=tile.real_queries)
    torch.bmm(tile.queries, tile.keys, out=tile.scores)
    tile.real_scores.add_(tile.mask)
    torch.softmax(tile.scores, dim=-1, out=tile.probabilities)
    torch.bmm(tile.blocks[0], tile.values[0], out=tile.summed)
    for block, values in zip(tile.blocks[1:], tile.values[1:], strict=True):
        tile.summed.baddbmm_(block, values)
    out.view(tile.shape).copy_(tile.real_summed)


def _round_up(n, multiple: int):
    return -(-n // multiple) * multiple
