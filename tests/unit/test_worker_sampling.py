"""Penalties and log-probabilities through scheduler and runner: the same bits under pressure as with all the room, and
on a rank that sees plans alone."""

from __future__ import annotations

import msgspec
import pytest
import torch

from common.batch import BatchPlan
from common.parallel.collectives import SingleRank
from common.runner import ModelRunner
from tests.helpers.invariance import invariant
from tests.helpers.reference import Reference
from tests.helpers.workloads import mixed

POOL = 400

pytestmark = invariant


class WithFollower(Reference):
    """Another rank as with --scheduling rank0: a runner that is sent the plans, encoded, and nothing else."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.follower = ModelRunner(
            self.worker.runner.model.config,
            SingleRank(),
            max_running_requests=self.args.max_running_requests,
            context_length=self.args.context_length,
            max_total_tokens=self.args.max_total_tokens,
        )
        self.turns = 0

    def turn(self, messages):
        plan = self.worker.plan(messages)
        if plan is not None:
            sampled = self.worker.execute(plan)
            followed = self.follower.execute(msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=BatchPlan))
            assert followed.ids.tolist() == sampled.ids.tolist()
            assert followed.logprobs == sampled.logprobs
            self.worker.commit(plan, sampled)
            self.turns += 1
        return self.worker.output()


def without_times(results: list[dict]) -> list[dict]:
    return [
        {
            **result,
            "meta_info": {k: v for k, v in result["meta_info"].items() if k not in ("e2e_latency", "cached_tokens")},
        }
        for result in results
    ]


PROMPTS, PARAMS = mixed(40, seed=11, longest=20)
WISH = {
    "return_logprob": [i % 3 != 1 for i in range(40)],
    "logprob_start_len": [(-1, 0, len(prompt) // 2)[i % 3 if i % 2 else 0] for i, prompt in enumerate(PROMPTS)],
    "top_logprobs_num": [i % 4 for i in range(40)],
}
LONGER = [{**fields, "max_new_tokens": 3 * fields["max_new_tokens"], "ignore_eos": True} for fields in PARAMS]
CALL = {"input_ids": PROMPTS, "sampling_params": LONGER, **WISH}


@pytest.fixture(scope="module")
def expected() -> list[dict]:
    roomy = Reference(model_path="tiny", max_total_tokens=16384, disable_radix_cache=True, chunked_prefill_size=-1)
    torch.set_num_threads(1)
    return without_times(roomy.results(**CALL))


def test_log_probabilities_are_given_where_asked_for(expected: list[dict]) -> None:
    for i, (prompt, result) in enumerate(zip(PROMPTS, expected, strict=True)):
        meta, start = result["meta_info"], WISH["logprob_start_len"][i]
        assert ("output_token_logprobs" in meta) == WISH["return_logprob"][i]
        if WISH["return_logprob"][i]:
            assert [token for _, token, _ in meta["output_token_logprobs"]] == result["output_ids"]
            assert [token for _, token, _ in meta["input_token_logprobs"]] == ([] if start == -1 else prompt[start:])
            assert ("input_top_logprobs" in meta) == (WISH["top_logprobs_num"][i] > 0)


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "random"])
def test_the_same_under_pressure_as_with_all_the_room(expected: list[dict], policy: str) -> None:
    tight = WithFollower(
        model_path="tiny",
        max_total_tokens=POOL,
        chunked_prefill_size=16,
        max_running_requests=12,
        schedule_policy=policy,
        schedule_conservativeness=0.01,
    )
    torch.set_num_threads(1)  # the worker has taken all cores
    assert without_times(tight.results(**CALL)) == expected
    assert without_times(tight.results(**CALL)) == expected  # with whatever the cache holds now
    assert tight.worker.scheduler.retraction_count >= 3, "the pool never ran dry: nothing was tested"
    assert tight.worker.scheduler.stats()["cached_tokens"] > 100
