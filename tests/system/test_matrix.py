"""Same prompts and seeds give the same tokens in every stage; the full matrix on `tiny` is the conformance suite."""

from __future__ import annotations

import pytest

from evolution import Engine
from experiments.transformers_reference import PROMPTS

DIAGONAL = [
    ("rpyc", 2, 1, "rank0", "level"),
    ("broadcast", 1, 2, "replicated", "era"),
    ("peer", 2, 2, "rank0", "level"),
    ("rpyc", 1, 1, "replicated", "level"),
    ("peer", 2, 1, "replicated", "level"),
    ("broadcast", 2, 1, "rank0", "level"),
    ("rpyc", 2, 1, "replicated", "era"),
    ("rpyc", 1, 2, "rank0", "era"),
    ("peer", 2, 1, "replicated", "era"),
]
SAMPLING = [
    {"max_new_tokens": 12, "temperature": 0} if i % 2 else {"max_new_tokens": 12, "temperature": 0.8, "top_p": 0.95}
    for i in range(12)
]


@pytest.fixture(scope="module")
def expected():
    with Engine(model_path="smollm2", stage="peer", max_total_tokens=4096) as engine:
        return [result["output_ids"] for result in engine.generate(PROMPTS[:12], SAMPLING)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("stage_name", "tp", "dp", "scheduling", "constants"),
    [pytest.param(*shape, marks=[pytest.mark.slow] if index > 1 else []) for index, shape in enumerate(DIAGONAL)],
)
def test_smollm2_tokens_are_identical(expected, stage_name, tp, dp, scheduling, constants):
    shape = {"stage": stage_name, "tp_size": tp, "dp_size": dp, "scheduling": scheduling, "constants": constants}
    with Engine(model_path="smollm2", max_total_tokens=4096, **shape) as engine:
        results = engine.generate(PROMPTS[:12], SAMPLING)
    assert [result["output_ids"] for result in results] == expected
