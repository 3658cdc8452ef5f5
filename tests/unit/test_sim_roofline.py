"""The predicted times against ones worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from common.batch import PrefillSeq, RowSampling
from common.messages import pack_ids
from common.sim.profiles import PROFILES
from common.sim.roofline import Roofline

LLAMA = PROFILES["h100-llama3-8b"]
BANDWIDTH, FLOPS = LLAMA.memory_bandwidth, LLAMA.flops
LAYER_WEIGHTS = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
HEAD_WEIGHTS = 4096 * 128256
KV_BYTES = 32 * 2 * 8 * 128 * 2  # of a token


def chunk(start: int, n: int, sample: bool = True) -> PrefillSeq:
    return PrefillSeq(0, start, pack_ids(range(n)), pack_ids(range(n)), b"", RowSampling(0.0, 1.0, -1, 1), sample)


def test_a_memory_bound_decode_step_reads_everything_once():
    expected = ((32 * LAYER_WEIGHTS + HEAD_WEIGHTS) * 2 + 5000 * KV_BYTES) / BANDWIDTH
    assert Roofline(LLAMA, 1).decode_seconds(rows=8, contexts=5000) == pytest.approx(expected)


def test_a_compute_bound_prefill():
    n = 4096
    multiplications = 2 * 32 * LAYER_WEIGHTS * n / FLOPS
    attention = 32 * 4 * (n * (n + 1) // 2) * 4096 / FLOPS
    head = HEAD_WEIGHTS * 2 / BANDWIDTH  # a single row
    assert Roofline(LLAMA, 1).prefill_seconds([chunk(0, n)]) == pytest.approx(multiplications + attention + head)


def test_a_later_chunk_attends_to_what_came_before():
    roofline = Roofline(LLAMA, 1)
    pairs = sum(range(301, 301 + 100))  # token 300 sees 301, itself included
    assert roofline.prefill_seconds([chunk(300, 100)]) == roofline.seconds(100, keys=400, pairs=pairs, sampled=1)


def test_without_a_sample_there_is_no_head():
    roofline = Roofline(LLAMA, 1)
    both = roofline.prefill_seconds([chunk(0, 10)]), roofline.prefill_seconds([chunk(0, 10, sample=False)])
    assert both[0] - both[1] == pytest.approx(HEAD_WEIGHTS * 2 / BANDWIDTH)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_it_grows_with_batch_and_context(name, tp_size):
    roofline = Roofline(PROFILES[name], tp_size)
    by_rows = [roofline.decode_seconds(rows, 10_000) for rows in (1, 16, 256, 1024)]
    by_context = [roofline.decode_seconds(16, contexts) for contexts in (16, 1000, 100_000, 1_000_000)]
    assert by_rows == sorted(by_rows)
    assert by_rows[-1] > by_rows[0]
    assert by_context == sorted(set(by_context))


def test_two_ranks_halve_the_work_and_pay_for_collectives():
    rows, contexts = 4, 1000
    work = Roofline(LLAMA, 1).decode_seconds(rows, contexts) / 2
    # With two ranks an all-reduce is two steps of half the bytes each, an all-gather one.
    all_reduce = 6.6e-6 + 2 * (0.6e-6 + rows * 4096 * 2 / 2 / 450e9)
    all_gather = 6.6e-6 + 0.6e-6 + rows * 128256 * 2 / 2 / 450e9
    expected = work + 64 * all_reduce + all_gather
    assert Roofline(LLAMA, 2).decode_seconds(rows, contexts) == pytest.approx(expected)


def test_a_model_that_the_ranks_cannot_share_is_refused():
    with pytest.raises(ValueError, match="Llama-3-8B cannot run at TP 3"):
        Roofline(LLAMA, 3)


def test_what_a_profile_adds_to_the_roofline():
    added = msgspec.structs.replace(LLAMA, fixed_seconds=0.5, token_seconds=0.01, key_seconds=0.001)
    plain, longer = Roofline(LLAMA, 2).decode_seconds(8, 100), Roofline(added, 2).decode_seconds(8, 100)
    assert longer - plain == pytest.approx(0.5 + 8 * 0.01 + 100 * 0.001)
