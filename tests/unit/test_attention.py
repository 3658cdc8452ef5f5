"""Attention: right, and the same bits however the tokens of a request are batched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.attention import DECODE_SPAN_TOKENS, PagedAttention

POOL = 2048
# kv_heads, query heads of each, head_dim: SmolLM2 at TP 1, 2 and 4; tiny; wider ones
SHAPES = [(3, 3, 64), (2, 3, 64), (1, 3, 64), (4, 2, 16), (1, 1, 16), (2, 8, 128)]


class Tokens:
    """q, k, v of one sequence of random tokens, and where in the pool it lives."""

    def __init__(self, shape: tuple[int, int, int], length: int, slots: np.ndarray, seed: int) -> None:
        kv_heads, group, dim = shape
        generator = torch.Generator().manual_seed(seed)
        self.q = torch.randn(length, kv_heads * group, dim, generator=generator)
        self.k = torch.randn(length, kv_heads, dim, generator=generator)
        self.v = torch.randn(length, kv_heads, dim, generator=generator)
        self.slots = slots[:length].astype(np.int32)


def make(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> PagedAttention:
    """A pool whose unwritten slots hold NaN: whoever reads one that is not its own shows it."""
    attention = PagedAttention(1, POOL, *shape, dtype)
    attention._pool[:, :, :POOL] = float("nan")
    return attention


def prefill(attention: PagedAttention, chunks: list[tuple[Tokens, int, int]]) -> list[torch.Tensor]:
    """One prefill turn of tokens [start, end) of each sequence."""
    attention.prepare_prefill([t.slots[:end] for t, _, end in chunks], [start for _, start, _ in chunks])
    q, k, v = (torch.cat([getattr(t, name)[start:end] for t, start, end in chunks]) for name in "qkv")
    return list(attention.attend(0, q, k, v).split([end - start for _, start, end in chunks]))


def decode(attention: PagedAttention, sequences: list[tuple[Tokens, int]]) -> torch.Tensor:
    """One decode turn: the token at `position` of each sequence."""
    table = np.zeros((len(sequences) + 3, POOL), dtype=np.int32)
    rows = np.arange(len(sequences))[::-1] + 2
    lengths = np.array([position + 1 for _, position in sequences])
    for row, (tokens, position) in zip(rows, sequences, strict=True):
        table[row, : position + 1] = tokens.slots[: position + 1]
    attention.prepare_decode(table, rows, lengths)
    q, k, v = (torch.stack([getattr(t, name)[position] for t, position in sequences]) for name in "qkv")
    return attention.attend(0, q, k, v)


def reference(tokens: Tokens, shape: tuple[int, int, int]) -> torch.Tensor:
    """float64, head by head."""
    _, group, dim = shape
    out = torch.empty_like(tokens.q)
    length = len(tokens.q)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for head in range(tokens.q.shape[1]):
        q, k, v = tokens.q[:, head].double(), tokens.k[:, head // group].double(), tokens.v[:, head // group].double()
        scores = (q @ k.t() / dim**0.5).masked_fill(hidden, float("-inf"))
        out[:, head] = (torch.softmax(scores, -1) @ v).float()
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_prefill_is_causal_attention(shape: tuple[int, int, int]) -> None:
    tokens = Tokens(shape, 300, np.random.default_rng(0).permutation(POOL), seed=1)
    (out,) = prefill(make(shape), [(tokens, 0, 300)])
    torch.testing.assert_close(out, reference(tokens, shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits_however_batched(shape: tuple[int, int, int]) -> None:
    check_invariance(shape, seed=1)


def test_same_bits_with_two_threads() -> None:
    alone = [check_invariance((3, 3, 64), seed=2)]
    torch.set_num_threads(2)
    alone.append(check_invariance((3, 3, 64), seed=2))
    assert all(torch.equal(one, two) for one, two in zip(*alone, strict=True))


@settings(deadline=None, max_examples=15)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**31))
def test_same_bits_for_any_lengths(shape: tuple[int, int, int], seed: int) -> None:
    check_invariance(shape, seed)


def check_invariance(shape: tuple[int, int, int], seed: int) -> list[torch.Tensor]:
    """Four sequences: each alone in one piece, then together in random chunks, then decoded together."""
    rng = np.random.default_rng(seed)
    slots = rng.permutation(POOL)
    lengths = [int(rng.integers(1, n)) for n in (20, 150, 300, 500)]
    sequences = [Tokens(shape, n, slots[512 * i :], seed + i) for i, n in enumerate(lengths)]
    alone = [prefill(make(shape), [(t, 0, len(t.q))])[0] for t in sequences]

    attention = make(shape)
    done = [0] * len(sequences)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chunks = []
        for i, tokens in enumerate(sequences):
            size = min(int(rng.choice([0, 1, 2, 3, 31, 100, 127, 128, 129, 250])), lengths[i] - done[i])
            if size:
                chunks.append((tokens, done[i], done[i] + size))
                done[i] += size
        if chunks:
            for out, (tokens, start, end) in zip(prefill(attention, chunks), chunks, strict=True):
                assert torch.equal(out, alone[sequences.index(tokens)][start:end]), (start, end)

    for _ in range(4):
        positions = [int(rng.integers(0, n)) for n in lengths]
        for i in range(len(sequences)):
            assert torch.equal(decode(attention, [(sequences[i], positions[i])])[0], alone[i][positions[i]])
        out = decode(attention, list(zip(sequences, positions, strict=True)))
        for i, position in enumerate(positions):
            assert torch.equal(out[i], alone[i][position]), (i, position)
    return alone


def test_a_decode_batch_of_several_spans() -> None:
    shape = (1, 2, 16)
    tokens = Tokens(shape, 600, np.random.default_rng(0).permutation(POOL), seed=3)
    attention = make(shape)
    (alone,) = prefill(attention, [(tokens, 0, 600)])
    batch = [(tokens, position) for position in (599, 3, 598, 500, 16, 15, 0, 597, 596, 595, 594)]
    assert len(batch) * 608 > DECODE_SPAN_TOKENS
    for got, (_, position) in zip(decode(attention, batch), batch, strict=True):
        assert torch.equal(got, alone[position])
    assert len(attention._spans) > 1


def test_bfloat16_pool() -> None:
    shape = (3, 3, 64)
    tokens = Tokens(shape, 100, np.arange(POOL), seed=4)
    for name in "qkv":
        setattr(tokens, name, getattr(tokens, name).bfloat16())
    attention = make(shape, torch.bfloat16)
    (out,) = prefill(attention, [(tokens, 0, 100)])
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), reference(tokens, shape).float(), rtol=2e-2, atol=2e-2)
    assert torch.equal(decode(attention, [(tokens, 99)])[0], out[99])
