"""Checking what a caller asks for: defaults, SGLang's shapes, and one clear line per refusal."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import LogprobParams, SamplingParams
from common.sampling_params import check_length, check_token_ids, make_logprob_params, make_sampling_params

SUPPORTED = set(SamplingParams.__struct_fields__)


def make(**fields: Any) -> SamplingParams:
    return one(fields, 42)


def one(fields: Any, default_seed: int) -> SamplingParams:
    (params,) = make_sampling_params(fields, default_seed)
    return params


def refusal(fields: Any) -> str:
    with pytest.raises(ValueError) as error:
        make_sampling_params(fields, 42)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_defaults_are_sglangs() -> None:
    expected = SamplingParams(
        max_new_tokens=128,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        seed=7,
        stop=(),
        stop_token_ids=(),
        ignore_eos=False,
        skip_special_tokens=True,
    )
    assert one(None, 7) == expected
    assert one({}, 7) == expected
    assert one(dict.fromkeys([*SUPPORTED, "n", "regex", "spaces_between_special_tokens"]), 7) == expected


def test_every_field_arrives() -> None:
    params = make(
        max_new_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-1,
        stop=["a", "\n"],
        stop_token_ids=[2, 0],
        ignore_eos=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        min_p=0.25,
        repetition_penalty=1.5,
        frequency_penalty=-2,
        presence_penalty=2,
        min_new_tokens=5,
        n=1,
    )
    assert params == SamplingParams(
        5, 0.5, 0.9, 40, -1, ("a", "\n"), (2, 0), True, False, 0.25, 1.5, -2.0, 2.0, min_new_tokens=5
    )


def test_checked_params_pass_unchanged_and_others_are_checked() -> None:
    params = make(temperature=0.3, seed=9, stop="x")
    assert one(params, 1) == params
    assert "top_p is 2.0" in refusal(SamplingParams(top_p=2.0))


def test_a_stop_string_alone_is_a_list_of_one() -> None:
    assert make(stop="END").stop == ("END",)
    assert make(stop=[]).stop == ()


def test_zero_tokens_stay_zero_and_integers_become_floats() -> None:
    assert make(max_new_tokens=0).max_new_tokens == 0
    params = make(temperature=0, top_p=1)
    assert (params.temperature, params.top_p) == (0.0, 1.0)
    assert isinstance(params.temperature, float)
    assert isinstance(params.top_p, float)


def test_a_tiny_temperature_is_greedy() -> None:
    assert make(temperature=1e-7).temperature == 0.0
    assert make(temperature=-0.0).temperature == 0.0
    assert make(temperature=1e-6).temperature == 1e-6


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "a finite number from 0"),
        ("temperature", math.nan, "a finite number from 0"),
        ("temperature", math.inf, "a finite number from 0"),
        ("temperature", 10**400, "a finite number from 0"),
        ("temperature", True, "a finite number from 0"),
        ("temperature", "0.5", "a finite number from 0"),
        ("temperature", [1], "a finite number from 0"),
        ("top_p", 0, "above 0, up to 1"),
        ("top_p", 1.01, "above 0, up to 1"),
        ("top_p", -1, "above 0, up to 1"),
        ("top_p", math.nan, "above 0, up to 1"),
        ("top_p", True, "above 0, up to 1"),
        ("top_p", "1", "above 0, up to 1"),
        ("top_k", 0, "-1 (the whole vocabulary) or a whole number from 1 to 2147483647"),
        ("top_k", -2, "-1 (the whole vocabulary)"),
        ("top_k", 5.0, "-1 (the whole vocabulary)"),
        ("top_k", True, "-1 (the whole vocabulary)"),
        ("top_k", 2**31, "-1 (the whole vocabulary)"),
        ("max_new_tokens", -1, "a whole number from 0 to 2147483647"),
        ("max_new_tokens", 16.0, "a whole number from 0"),
        ("max_new_tokens", "16", "a whole number from 0"),
        ("max_new_tokens", False, "a whole number from 0"),
        ("seed", 2**63, "a whole number from -9223372036854775808 to 9223372036854775807"),
        ("seed", -(2**63) - 1, "a whole number from -9223372036854775808"),
        ("seed", True, "a whole number"),
        ("seed", 1.5, "a whole number"),
        ("stop", 5, "a string or a list of strings"),
        ("stop", {"a": 1}, "a string or a list of strings"),
        ("stop", "", "strings of 1 to 256 characters"),
        ("stop", ["ok", ""], "strings of 1 to 256 characters"),
        ("stop", ["ok", 3], "strings of 1 to 256 characters"),
        ("stop", [None], "strings of 1 to 256 characters"),
        ("stop", "x" * 257, "strings of 1 to 256 characters"),
        ("stop", "\ud83d", "without lone surrogates"),
        ("stop_token_ids", 2, "a list of token ids"),
        ("stop_token_ids", "2", "a list of token ids"),
        ("stop_token_ids", [1, True], "whole numbers from 0"),
        ("stop_token_ids", [1.0], "whole numbers from 0"),
        ("stop_token_ids", [-1], "whole numbers from 0"),
        ("ignore_eos", 1, "true or false"),
        ("ignore_eos", "yes", "true or false"),
        ("skip_special_tokens", 0, "true or false"),
        ("spaces_between_special_tokens", "no", "true or false"),
        ("min_p", 1.01, "a number from 0 to 1"),
        ("min_p", -0.01, "a number from 0 to 1"),
        ("min_p", math.nan, "a number from 0 to 1"),
        ("repetition_penalty", 0, "a number above 0, up to 2"),
        ("repetition_penalty", 2.1, "a number above 0, up to 2"),
        ("frequency_penalty", -2.1, "a number from -2 to 2"),
        ("presence_penalty", math.inf, "a number from -2 to 2"),
        ("min_new_tokens", -1, "a whole number from 0 to 128"),
        ("min_new_tokens", 129, "a whole number from 0 to 128"),
        ("min_new_tokens", False, "a whole number from 0 to 128"),
        ("n", 0, "a whole number from 1 to 128"),
        ("n", 129, "a whole number from 1 to 128"),
        ("n", True, "a whole number from 1 to 128"),
        ("n", "1", "a whole number from 1 to 128"),
    ],
)
def test_refusals_name_the_field_the_value_and_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    text = refusal({name: value})
    assert text.startswith(f"{name} is ")
    shown = repr(value[-1] if isinstance(value, list) and name.startswith("stop") else value)[:40]
    assert shown in text
    assert allowed in text


def test_too_many_stops() -> None:
    assert len(make(stop=["x"] * 32, stop_token_ids=[1] * 256).stop) == 32
    assert refusal({"stop": ["x"] * 33}) == "stop has 33 strings; allowed: up to 32"
    assert refusal({"stop_token_ids": [1] * 257}) == "stop_token_ids has 257 ids; allowed: up to 256"


@pytest.mark.parametrize(
    ("name", "neutral", "other"),
    [
        ("dtype", [], ["int"]),
        ("no_stop_trim", [False], [True, 0]),
    ],
)
def test_sglang_fields_that_are_not_supported(name: str, neutral: list[Any], other: list[Any]) -> None:
    for value in [None, *neutral]:
        assert make(**{name: value}) == SamplingParams()
    for value in other:
        text = refusal({name: value})
        assert text.startswith(f"{name} is {value!r}, but {name} is not supported; allowed: ")


@pytest.mark.parametrize(
    ("name", "value"), [("regex", "a+"), ("regex", ""), ("json_schema", {}), ("ebnf", "x"), ("structural_tag", "t")]
)
def test_grammars_are_out_of_scope(name: str, value: Any) -> None:
    assert make(**{name: None}) == SamplingParams()
    assert refusal({name: value}) == f"{name} is {value!r}, but constrained output is out of scope; allowed: none"


def test_n_requests_differ_in_their_seeds() -> None:
    assert [params.seed for params in make_sampling_params({"n": 3, "seed": 10}, 42)] == [10, 11, 12]
    requests = make_sampling_params({"n": 128, "top_k": 5}, 42)
    assert [params.seed for params in requests] == list(range(42, 170))
    assert all(msgspec.structs.replace(params, seed=0) == SamplingParams(top_k=5, seed=0) for params in requests)
    last = 2**63 - 1
    assert make_sampling_params({"n": 2, "seed": last - 1}, 42)[1].seed == last
    assert refusal({"n": 2, "seed": last}).endswith(f"allowed: a whole number from {-(2**63)} to {last - 1}")


def test_log_probabilities() -> None:
    assert make_logprob_params(False, -1, 0, 5) is None
    assert make_logprob_params(None, None, None, 5) is None
    assert make_logprob_params(True, -1, 0, 5) == LogprobParams(5, 0)
    assert make_logprob_params(True, 0, 100, 5) == LogprobParams(0, 100)
    assert make_logprob_params(True, 4, 2, 5) == LogprobParams(4, 2)
    for wish, message in [
        ((1, -1, 0), "return_logprob is 1; allowed: true or false"),
        ((True, 5, 0), "logprob_start_len is 5; allowed: -1 (none of the prompt) or a whole number from 0 to 4"),
        ((True, -2, 0), "logprob_start_len is -2; allowed"),
        ((True, True, 0), "logprob_start_len is True; allowed"),
        ((True, 0, 101), "top_logprobs_num is 101; allowed: a whole number from 0 to 100"),
        ((False, 0, -1), "top_logprobs_num is -1; allowed"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            make_logprob_params(*wish, 5)


def test_unknown_fields_get_a_hint() -> None:
    assert refusal({"max_tokens": 5}) == "unknown sampling parameter 'max_tokens'; did you mean max_new_tokens?"
    assert refusal({"temprature": 5}) == "unknown sampling parameter 'temprature'; did you mean temperature?"
    assert "allowed: frequency_penalty, ignore_eos" in refusal({"zzzz": None})
    assert "unknown sampling parameter '3'" in refusal({3: 1})
    assert "..." in refusal({"q" * 10_000: 1})


@pytest.mark.parametrize("fields", [[], "temperature", 3, True])
def test_fields_must_be_an_object(fields: Any) -> None:
    assert refusal(fields) == f"sampling_params is {fields!r}; allowed: an object of named fields"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(sorted(SUPPORTED)) | st.text(max_size=4), anything, max_size=4))
def test_anything_is_either_refused_in_one_line_or_can_travel(fields: dict[str, Any]) -> None:
    try:
        requests = make_sampling_params(fields, 42)
    except ValueError as error:
        assert re.fullmatch(r"[^\n]+", str(error))
        return
    for params in requests:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
        assert one(params, 1) == params


def test_token_ids() -> None:
    check_token_ids([0, 9], 10)
    check_token_ids((3,), 10)
    for ids, text in [
        ([], "input_ids is []; allowed: a non-empty list of token ids"),
        ("12", "input_ids is '12'; allowed: a non-empty list of token ids"),
        (None, "input_ids is None; allowed: a non-empty list of token ids"),
        ([1, 10, -1], "input_ids[1] is 10; allowed: a whole number from 0 to 9"),
        ([1, -1], "input_ids[1] is -1; allowed: a whole number from 0 to 9"),
        ([True], "input_ids[0] is True; allowed: a whole number from 0 to 9"),
        ([1, 2, 3.0], "input_ids[2] is 3.0; allowed: a whole number from 0 to 9"),
        ([[1, 2]], "input_ids[0] is [1, 2]; allowed: a whole number from 0 to 9"),
    ]:
        with pytest.raises(ValueError, match=re.escape(text)):
            check_token_ids(ids, 10)


@pytest.mark.parametrize(
    ("prompt", "wanted", "context", "pool", "granted"),
    [
        (10, 5, 100, 100, 5),
        (99, 5, 100, 1000, 1),
        (99, 5, 1000, 100, 1),
        (60, 128, 100, 90, 30),
        (100, 0, 100, 100, 0),
        (1, 0, 100, 100, 0),
    ],
)
def test_lengths_that_fit(prompt: int, wanted: int, context: int, pool: int, granted: int) -> None:
    assert check_length(prompt, wanted, context, pool) == granted


@pytest.mark.parametrize(
    ("prompt", "wanted", "context", "pool"),
    [(100, 1, 100, 200), (100, 1, 200, 100), (101, 0, 100, 200), (5000, 128, 100, 200)],
)
def test_lengths_that_do_not_fit(prompt: int, wanted: int, context: int, pool: int) -> None:
    with pytest.raises(ValueError) as error:
        check_length(prompt, wanted, context, pool)
    text = str(error.value)
    assert f"the prompt has {prompt} tokens" in text
    assert f"context length {context}, KV pool {pool} tokens" in text
    allowed = int(re.search(r"up to (\d+)", text)[1])
    assert check_length(allowed, wanted, context, pool) == min(wanted, 1)
