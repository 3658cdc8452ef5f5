"""On a GPU: the same engine, the same tokens in float32. Two ranks on one GPU go through gloo."""

from __future__ import annotations

import pytest
import torch

from evolution import Engine
from tests.helpers.reference import Reference
from tests.helpers.workloads import mixed

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible"),
]
SETTINGS = {"model_path": "tiny", "max_total_tokens": 2048}


@pytest.mark.parametrize("tp", [1, 2])
def test_float32_tokens_equal_those_of_the_cpu(stage, tp):
    prompts, params = mixed(12)
    expected = Reference(**SETTINGS).generate(input_ids=prompts, sampling_params=params)
    with Engine(stage=stage, tp_size=tp, device="cuda", **SETTINGS) as engine:
        results = engine.generate(input_ids=prompts, sampling_params=params)
    assert [result["output_ids"] for result in results] == expected


@pytest.mark.parametrize("tp", [1, 2])
def test_the_forward_on_a_thread_of_its_own(tp):
    """Its current GPU, its inference mode and its captures are that thread's."""
    prompts, params = mixed(12)
    expected = Reference(**SETTINGS).generate(input_ids=prompts, sampling_params=params)
    with Engine(stage="peer", overlap=True, tp_size=tp, device="cuda", **SETTINGS) as engine:
        results = engine.generate(input_ids=prompts, sampling_params=params)
    assert [result["output_ids"] for result in results] == expected


@pytest.mark.parametrize("graphs", [True, False])
def test_decode_with_and_without_graphs_gives_the_same_tokens(graphs):
    """Rows come and go, so batches of many sizes are captured and replayed."""
    prompts, params = mixed(24)
    expected = Reference(**SETTINGS).generate(input_ids=prompts, sampling_params=params)
    with Engine(device="cuda", disable_cuda_graph=not graphs, max_running_requests=6, **SETTINGS) as engine:
        results = engine.generate(input_ids=prompts, sampling_params=params)
        captured = engine.stats()[0].get("cuda_graphs", 0)
    assert [result["output_ids"] for result in results] == expected
    assert (captured > 1) == graphs


def test_decode_changes_between_graph_and_eager(monkeypatch):
    """In this process, with so small a bound that batches cross it as rows come and go."""
    monkeypatch.setattr("common.cuda_graphs.MOST_KEYS", 256)
    prompts, params = mixed(12)
    expected = Reference(**SETTINGS).generate(input_ids=prompts, sampling_params=params)
    on_gpu = Reference(device="cuda", **SETTINGS)
    assert on_gpu.generate(input_ids=prompts, sampling_params=params) == expected
    assert on_gpu.worker.runner.counts()["cuda_graphs"] in (1, 2)


def test_bfloat16_runs():
    with Engine(model_path="smollm2", device="cuda", dtype="bfloat16", max_total_tokens=4096) as engine:
        text = engine.generate("The capital of France is", {"max_new_tokens": 8, "temperature": 0})["text"]
    assert "Paris" in text
