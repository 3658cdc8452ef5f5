"""The GPU's attention and padded decode batches, on a CPU: everything but the kernels and the capture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.attention import PagedAttention
from common.cuda_graphs import DecodeGraphs
from common.gpu_attention import GpuAttention

POOL = 512
SHAPES = [(3, 3, 64), (1, 1, 16), (2, 4, 32)]


def both(kv_heads: int, group: int, dim: int) -> tuple[PagedAttention, GpuAttention]:
    paged = PagedAttention(1, POOL, kv_heads, group, dim, torch.float32)
    return paged, GpuAttention(1, POOL, kv_heads, dim, torch.float32, "cpu")


def tokens(n: int, heads: int, kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(n, heads, dim), torch.randn(n, kv_heads, dim), torch.randn(n, kv_heads, dim)


@pytest.mark.parametrize(("kv_heads", "group", "dim"), SHAPES)
def test_the_same_as_on_a_cpu(monkeypatch, kv_heads, group, dim):
    """Two sequences: prefilled in two chunks each, of more tokens than a tile has, then decoded together."""
    monkeypatch.setattr("common.gpu_attention.QUERY_TILE", 16)
    torch.manual_seed(0)
    slots = np.random.default_rng(0).permutation(POOL).astype(np.int32)
    tables = [slots[:90], slots[100:137]]
    cuts = [(0, 50, 89), (0, 10, 36)]
    pair = both(kv_heads, group, dim)
    for chunk in range(2):
        starts, ends = [cut[chunk] for cut in cuts], [cut[chunk + 1] for cut in cuts]
        q, k, v = tokens(sum(ends) - sum(starts), kv_heads * group, kv_heads, dim)
        results = []
        for attention in pair:
            attention.prepare_prefill([table[:end] for table, end in zip(tables, ends, strict=True)], starts)
            results.append(attention.attend(0, q, k, v))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    slot_table = np.zeros((4, 96), dtype=np.int32)
    slot_table[2, :90], slot_table[0, :37] = tables
    q, k, v = tokens(2, kv_heads * group, kv_heads, dim)
    monkeypatch.setattr("common.gpu_attention.DECODE_SPAN_KEYS", 128)  # a span for each
    results = []
    for attention in pair:
        attention.prepare_decode(slot_table, np.array([2, 0]), np.array([90, 37]))
        results.append(attention.attend(0, q, k, v))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_padded_decode_batches_give_the_same_logits():
    """Batches of one to five rows through the buffers of a graph; the pool's padding stays zero."""
    torch.manual_seed(1)
    attention = GpuAttention(1, POOL, 2, 16, torch.float32, "cpu")
    weight = torch.randn(3, 50, 4, 16)  # q, k and v of each token id

    def forward(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = weight[0, input_ids], weight[1, input_ids, :2], weight[2, input_ids, :2]
        return attention.attend(0, q, k + positions[:, None, None], v).flatten(1)

    graphs = DecodeGraphs(forward, attention, capture=False)
    slot_table = np.random.default_rng(1).permutation(POOL)[:500].reshape(5, 100).astype(np.int32)
    attention._keys[:, :POOL] = torch.randn(POOL, 2, 16)
    attention._values[:, :POOL] = torch.randn(POOL, 2, 16)
    for size in (1, 3, 5, 2, 4):
        rows = np.arange(size)[::-1].copy()
        positions = np.array([7, 99, 30, 64, 11])[:size]
        ids = np.arange(size) * 3
        found = graphs.run(ids, positions, slot_table, rows).clone()
        attention.prepare_decode(slot_table, rows, positions + 1)
        expected = forward(torch.from_numpy(ids), torch.from_numpy(positions))
        torch.testing.assert_close(found, expected)
    assert not attention._keys[0, POOL].any()
