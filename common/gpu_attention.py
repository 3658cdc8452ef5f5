"""Attention on a GPU: torch's scaled_dot_product_attention over keys and values gathered from a paged KV pool.

The same calls as `common.attention.PagedAttention`, which is for CPUs. A gather and a mask make a paged pool fit any
SDPA kernel; the query heads that share a KV head become query rows, so nothing is copied per head. Unlike on the CPU
the bits may depend on what else is in the batch: kernels are chosen by shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

# Query tokens of a prefill that are attended to at once: bounds the mask.
QUERY_TILE = 1024
# Decode gathers as many keys per sequence as the longest has, rounded up to this; so many at once, with padding.
KEY_PADDING = 64
DECODE_SPAN_KEYS = 1 << 17


@dataclass
class DecodeBatch:
    """What a decode turn reads, on the device: B sequences, padded to L keys each.

    new_slots int64 [B]   slots that receive this turn's keys and values
    key_slots int64 [B, L]   slots of all keys of a sequence, then of padding
    seen bool [B, 1, 1, L]   which of them are keys
    """

    new_slots: torch.Tensor
    key_slots: torch.Tensor
    seen: torch.Tensor


class GpuAttention:
    """The KV pool of one rank: `pool_size` slots, each one token's keys and values in all layers.

    `prepare_prefill`, `prepare_decode` or `use` once per turn, then `attend` once per layer.
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
        self.padding_slot = pool_size  # read by padding keys, always zero
        self.unused_slot = pool_size + 1  # written by padding rows
        self.kv_heads = kv_heads
        self.device = torch.device(device)
        shape = (num_layers, pool_size + 2, kv_heads, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._decode: list[DecodeBatch] = []
        self._new_slots = torch.empty(0, dtype=torch.long)
        self._prefill: list[tuple[torch.Tensor, int]] = []  # (slots of all tokens, first new one) per sequence

    def prepare_prefill(self, slots: list[np.ndarray], starts: list[int]) -> None:
        """The batch is, per sequence i, its tokens [starts[i], len(slots[i])); slots[i] are those of all its tokens."""
        self._decode = []
        self._prefill = [(self._tensor(table), start) for table, start in zip(slots, starts, strict=True)]
        self._new_slots = torch.cat([table[start:] for table, start in self._prefill])

    def prepare_decode(self, slot_table: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> None:
        """The batch is the last of the lengths[i] tokens of sequence i, whose slots are slot_table[rows[i]]."""
        width = -(-int(lengths.max()) // KEY_PADDING) * KEY_PADDING
        step = max(1, DECODE_SPAN_KEYS // width)
        spans = [slice(first, first + step) for first in range(0, len(rows), step)]
        self.use(*(self.decode_batch(slot_table, rows[s], lengths[s], len(rows[s]), width) for s in spans))

    def use(self, *spans: DecodeBatch) -> None:
        """The decode batch is these, one after the other."""
        self._decode = list(spans)
        self._new_slots = spans[0].new_slots if len(spans) == 1 else torch.cat([span.new_slots for span in spans])

    def decode_batch(
        self, slot_table: np.ndarray, rows: np.ndarray, lengths: np.ndarray, size: int, width: int
    ) -> DecodeBatch:
        """Padded to `size` sequences of `width` keys. A padding sequence sees one key, which is zero."""
        key_slots = np.full((size, width), self.padding_slot, dtype=np.int64)
        seen = np.zeros((size, width), dtype=bool)
        seen[:, 0] = True
        given = min(width, slot_table.shape[1])
        seen[: len(rows), :given] = np.arange(given) < lengths[:, None]
        table = slot_table[rows, :given]
        key_slots[: len(rows), :given] = np.where(seen[: len(rows), :given], table, self.padding_slot)
        new_slots = np.full(size, self.unused_slot, dtype=np.int64)
        new_slots[: len(rows)] = slot_table[rows, lengths - 1]
        return DecodeBatch(
            self._tensor(new_slots), self._tensor(key_slots), torch.from_numpy(seen[:, None, None]).to(self.device)
        )

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend: q [N, q_heads, D], k and v [N, kv_heads, D] -> [N, q_heads, D]."""
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(0, self._new_slots, k)
        values.index_copy_(0, self._new_slots, v)
        out, first = [], 0
        for span in self._decode:
            n = len(span.new_slots)
            out.append(self._attend_decode(q[first : first + n], keys, values, span))
            first += n
        if self._decode:
            return out[0] if len(out) == 1 else torch.cat(out)
        for slots, start in self._prefill:
            n = len(slots) - start
            out.append(self._attend_prefill(q[first : first + n], keys[slots], values[slots], start))
            first += n
        return torch.cat(out)

    def _attend_decode(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: DecodeBatch
    ) -> torch.Tensor:
        """The query heads of a group are rows that see the same keys."""
        size, heads, dim = q.shape
        q = q.view(size, self.kv_heads, heads // self.kv_heads, dim)
        keys = keys[batch.key_slots].transpose(1, 2)  # [B, kv_heads, L, D]
        values = values[batch.key_slots].transpose(1, 2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=batch.seen).reshape(size, heads, dim)

    def _attend_prefill(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int) -> torch.Tensor:
        """q [n, q_heads, D] of tokens [start, start + n); keys, values [start + n, kv_heads, D]."""
        n, heads, dim = q.shape
        group = heads // self.kv_heads
        q = q.view(n, self.kv_heads, group, dim).permute(1, 0, 2, 3)  # [kv_heads, n, group, D]
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, L, D]
        out = []
        for first in range(0, n, QUERY_TILE):
            last = min(first + QUERY_TILE, n)
            positions = torch.arange(start + first, start + last, device=q.device).repeat_interleave(group)
            seen = torch.arange(start + last, device=q.device) <= positions[:, None]
            rows = q[:, first:last].reshape(1, self.kv_heads, -1, dim)
            tile = F.scaled_dot_product_attention(
                rows, keys[None, :, : start + last], values[None, :, : start + last], attn_mask=seen
            )
            out.append(tile[0].view(self.kv_heads, last - first, group, dim).permute(1, 0, 2, 3))
        return torch.cat(out).reshape(n, heads, dim)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)
