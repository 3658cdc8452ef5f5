"""`--device sim` in every stage: the same tokens, whatever the stage, TP, scheduling or replica."""

from __future__ import annotations

import os
import signal
import time

import pytest

from evolution import Engine, EngineError
from evolution.stages import supports
from tests.conformance.test_conformance import scheduling_settings
from tests.conftest import descendants
from tests.helpers.reference import Reference
from tests.helpers.workloads import mixed

WAIT = 20.0
SETTINGS = {"device": "sim", "max_total_tokens": 2048, "max_running_requests": 6, "chunked_prefill_size": 64}
EVERY_TIME = [
    (1, 1, "replicated"),
    (2, 1, "replicated"),
    (2, 1, "rank0"),
    (1, 2, "replicated"),
    (1, 1, "overlap"),
    (2, 1, "overlap"),
]
NIGHTLY = [(4, 1, "replicated"), (2, 2, "rank0"), (4, 1, "overlap"), (2, 2, "overlap")]
SHAPES = [*EVERY_TIME, *(pytest.param(shape, marks=pytest.mark.slow) for shape in NIGHTLY)]


def workload() -> tuple[list[list[int]], list[dict]]:
    """Those of `mixed` without what needs logits."""
    prompts, params = mixed(24)
    kept = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
    return prompts, [{name: fields[name] for name in kept if name in fields} for fields in params]


@pytest.fixture(scope="module")
def expected_tokens():
    prompts, params = workload()
    return Reference(**SETTINGS).generate(input_ids=prompts, sampling_params=params)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "tp{}-dp{}-{}".format(*shape))
def test_tokens_are_the_same_in_every_shape(stage, shape, expected_tokens):
    tp, dp, scheduling = shape
    for needed, wanted in (("dp", dp > 1), (scheduling, scheduling != "replicated")):
        if wanted and needed not in supports(stage):
            pytest.skip(f"{stage} does not list {needed} in SUPPORTS")
    prompts, params = workload()
    settings = {"tp_size": tp, "dp_size": dp, "check_divergence": 1, **scheduling_settings(scheduling), **SETTINGS}
    with Engine(stage=stage, **settings) as engine:
        streams = engine.submit(engine.make_requests(input_ids=prompts, sampling_params=params)[1])
        assert all(stream.done.wait(WAIT) for stream in streams), "some requests have no outcome"
        results = [stream.result() for stream in streams]
        stats = engine.stats()
    assert [result["output_ids"] for result in results] == expected_tokens
    for result, fields in zip(results, params, strict=True):
        assert result["meta_info"]["finish_reason"] == {"type": "length", "length": fields["max_new_tokens"]}
    for replica in stats:
        assert replica["free_tokens"] + replica["evictable_tokens"] == SETTINGS["max_total_tokens"]
        assert replica["sim_forwards"] == replica["turns"] > 0
        assert replica["sim_predicted_seconds"] > 0


def test_a_killed_rank_is_named_and_ends_every_call(stage):
    """The other one is blocked where they meet."""
    with pytest.raises(EngineError) as caught, Engine(stage=stage, tp_size=2, **SETTINGS) as engine:
        params = {"max_new_tokens": 1500}
        (stream,) = engine.submit(engine.make_requests(input_ids=[[1, 2, 3]], sampling_params=params, stream=True)[1])
        next(stream.results())
        victim = [node for report in engine.processes for node in report.walk()][-1]
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        for _ in stream.results():
            pass
    assert time.monotonic() - began < 2
    assert descendants() == set()
    assert f"{victim.name} (pid {victim.pid}) was killed by SIGKILL" in str(caught.value)
