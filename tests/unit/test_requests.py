"""From a call to requests, where the vocabulary or n matters; no engine runs."""

from __future__ import annotations

import dataclasses

import pytest

from common.args import EngineArgs
from common.messages import LogprobParams, unpack_ids
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.requests import RequestMaker


@pytest.fixture(scope="module")
def maker() -> RequestMaker:
    """Of a model with a vocabulary of four tokens, of which one is an end of sequence."""
    args, config = resolve_args(EngineArgs(model_path="tiny", max_total_tokens=64), measure_memory=False)
    config = dataclasses.replace(config, vocab_size=4, eos_token_ids=(3,))
    return RequestMaker(args, config, Tokenizer(args.model_path))


def test_each_prompts_requests_stand_together(maker: RequestMaker) -> None:
    single, requests = maker(input_ids=[[1], [2]], sampling_params=[{"n": 2}, {"n": 3, "seed": 5}])
    assert not single
    assert [unpack_ids(request.input_ids).tolist() for request in requests] == [[1], [1], [2], [2], [2]]
    seed = maker.args.random_seed
    assert [request.sampling.seed for request in requests] == [seed, seed + 1, 5, 6, 7]
    _, requests = maker(input_ids=[[1], [1]], sampling_params={"n": 2})
    assert [request.sampling.seed for request in requests] == [seed, seed + 1, seed + 2, seed + 3]
    assert maker(input_ids=[1])[0]
    assert not maker(input_ids=[1], sampling_params={"n": 2})[0], "two results of one prompt are a list"


def test_log_probabilities_may_differ_by_prompt(maker: RequestMaker) -> None:
    _, requests = maker(input_ids=[[1, 2], [2]], return_logprob=[True, False], logprob_start_len=[1, 0])
    assert [request.logprobs for request in requests] == [LogprobParams(1, 0), None]


def test_what_the_vocabulary_does_not_allow(maker: RequestMaker) -> None:
    assert maker(input_ids=[1], return_logprob=True, top_logprobs_num=4)
    with pytest.raises(ValueError, match="top_logprobs_num is 5; allowed: up to 4"):
        maker(input_ids=[1], return_logprob=True, top_logprobs_num=5)
    assert maker(input_ids=[1], sampling_params={"min_new_tokens": 1, "stop_token_ids": [0, 1]})
    with pytest.raises(ValueError, match="min_new_tokens forbids eos and stop token ids, and these are the whole"):
        maker(input_ids=[1], sampling_params={"min_new_tokens": 1, "stop_token_ids": [0, 1, 2]})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ({"sampling_params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"sampling_params": {"frequency_penalty": 0.1}}, "frequency_penalty"),
        ({"sampling_params": {"presence_penalty": 0.1}}, "presence_penalty"),
        ({"sampling_params": {"min_p": 0.1}}, "min_p"),
        ({"sampling_params": {"min_new_tokens": 1}}, "min_new_tokens"),
        ({"return_logprob": True}, "return_logprob"),
    ],
)
def test_what_needs_logits_is_refused_on_sim(call: dict, name: str) -> None:
    args, config = resolve_args(EngineArgs(device="sim"), measure_memory=False)
    maker = RequestMaker(args, config, Tokenizer(args.model_path))
    assert maker(input_ids=[1], sampling_params={"temperature": 0.5, "top_p": 0.9, "top_k": 3, "n": 2})
    with pytest.raises(ValueError, match=f"{name} needs logits, and --device sim has none"):
        maker(input_ids=[1], **call)


def test_a_name_for_each_prompt(maker: RequestMaker) -> None:
    _, requests = maker(input_ids=[[1], [2]], sampling_params={"n": 2}, rid=["a", "b"])
    assert [request.rid for request in requests] == ["a", "a", "b", "b"]
    assert maker(input_ids=[1], rid="a")[1][0].rid == "a"
    for rid in ("", 5, "x" * 257, "\ud83d", ["a", "b"], []):
        with pytest.raises(ValueError, match="rid "):
            maker(input_ids=[1], rid=rid)
