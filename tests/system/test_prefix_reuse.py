"""The radix cache pays: at least 5 times as fast on 16 requests that share a prefix of 512 tokens."""

from __future__ import annotations

import statistics

import pytest

from experiments.prefix_reuse import compare


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_shared_prefix_is_five_times_as_fast(stage):
    pairs = compare(3, model_path="smollm2", stage=stage, max_total_tokens=16384)
    assert statistics.median(without / with_cache for with_cache, without in pairs) >= 5, pairs
