"""What a caller may ask for, checked once in the main process: nothing behind it meets a bad value.

Names and defaults are SGLang's. Each refusal is a ValueError of one line: the field, the value, and what is allowed.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from common.messages import LogprobParams, SamplingParams

# Each token of a request costs a look at a tail as long as each of its stop strings (0.7 us per character at worst).
MAX_STOPS = 32
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# SGLang samples greedily below this temperature.
GREEDY_BELOW = 1e-6
# A str in Python may hold one, but no message can carry it.
LONE_SURROGATE = re.compile("[\ud800-\udfff]")

# Results of one prompt. Each is a request of its own, so this bounds what one call may hand over unseen.
MAX_N = 128
# What is kept per token and travels with it.
MAX_TOP_LOGPROBS = 100

# Fields of SGLang that this engine does not have, and the value that asks for nothing.
NEUTRAL: dict[str, Any] = {"dtype": None, "no_stop_trim": False}
# Those that constrain the output to a grammar.
GRAMMARS = ("regex", "json", "json_schema", "ebnf", "structural_tag")
DEFAULTS: dict[str, Any] = {**msgspec.structs.asdict(SamplingParams()), "n": 1, "spaces_between_special_tokens": True}


def make_sampling_params(fields: dict[str, Any] | SamplingParams | None, default_seed: int) -> list[SamplingParams]:
    """The checked parameters of the `n` requests (default: one) that a prompt becomes, which differ in their seeds.

    A field that is absent or None takes its default. `stop` may be a string or a list of strings. The first request's
    seed is `seed`, or `default_seed`; the next ones count up.
    """
    if isinstance(fields, SamplingParams):
        fields = msgspec.structs.asdict(fields)
    if fields is None:
        fields = {}
    if not isinstance(fields, dict):
        raise ValueError(f"sampling_params is {_show(fields)}; allowed: an object of named fields")
    for name in fields:
        if name not in DEFAULTS and name not in NEUTRAL and name not in GRAMMARS:
            raise ValueError(_unknown(str(name)))
    given = {name: value for name, value in fields.items() if value is not None}
    for name in GRAMMARS:
        if name in given:
            raise ValueError(f"{name} is {_show(given[name])}, but constrained output is out of scope; allowed: none")
    for name, neutral in NEUTRAL.items():
        if name in given and not _is_neutral(given[name], neutral):
            raise ValueError(f"{name} is {_show(given[name])}, but {name} is not supported; allowed: {neutral} or none")

    values = {**DEFAULTS, "seed": default_seed, **given}
    _flag(values, "spaces_between_special_tokens")  # known to SGLang, without effect here
    temperature = _number(values, "temperature", lambda t: 0 <= t <= sys.float_info.max, "a finite number from 0")
    max_new_tokens = _whole(values, "max_new_tokens", 0, INT32_MAX)
    n = _whole(values, "n", 1, MAX_N)
    seed = _whole(values, "seed", INT64_MIN, INT64_MAX - (n - 1))
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=_number(values, "top_p", lambda p: 0 < p <= 1, "a number above 0, up to 1"),
        top_k=_top_k(values["top_k"]),
        seed=seed,
        stop=_stop(values["stop"]),
        stop_token_ids=_stop_token_ids(values["stop_token_ids"]),
        ignore_eos=_flag(values, "ignore_eos"),
        skip_special_tokens=_flag(values, "skip_special_tokens"),
        min_p=_number(values, "min_p", lambda p: 0 <= p <= 1, "a number from 0 to 1"),
        repetition_penalty=_number(values, "repetition_penalty", lambda p: 0 < p <= 2, "a number above 0, up to 2"),
        frequency_penalty=_number(values, "frequency_penalty", lambda p: -2 <= p <= 2, "a number from -2 to 2"),
        presence_penalty=_number(values, "presence_penalty", lambda p: -2 <= p <= 2, "a number from -2 to 2"),
        min_new_tokens=_whole(values, "min_new_tokens", 0, max_new_tokens),
    )
    return [msgspec.structs.replace(params, seed=seed + index) for index in range(n)]


def make_logprob_params(
    return_logprob: Any, logprob_start_len: Any, top_logprobs_num: Any, prompt_len: int
) -> LogprobParams | None:
    """The checked wish for log-probabilities of a request whose prompt has prompt_len tokens; None for none.

    Each may be None, which is its default: False, -1 (none of the prompt), 0. The other two count only with
    return_logprob, as in SGLang; they are checked all the same.
    """
    values = {
        "return_logprob": False if return_logprob is None else return_logprob,
        "logprob_start_len": -1 if logprob_start_len is None else logprob_start_len,
        "top_logprobs_num": 0 if top_logprobs_num is None else top_logprobs_num,
    }
    start = values["logprob_start_len"]
    if not _is_int(start, -1, prompt_len - 1):
        allowed = f"-1 (none of the prompt) or a whole number from 0 to {prompt_len - 1}, the prompt's last token"
        raise _refusal("logprob_start_len", start, allowed)
    top = _whole(values, "top_logprobs_num", 0, MAX_TOP_LOGPROBS)
    if not _flag(values, "return_logprob"):
        return None
    return LogprobParams(prompt_len if start == -1 else start, top)


def check_token_ids(ids: Any, vocab_size: int) -> None:
    """Raise ValueError unless `ids` is a non-empty list of ints in [0, vocab_size)."""
    if not isinstance(ids, (list, tuple)) or not ids:
        raise _refusal("input_ids", ids, "a non-empty list of token ids")
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise _refusal(f"input_ids[{index}]", token, f"a whole number from 0 to {vocab_size - 1}")


def check_length(prompt_len: int, max_new_tokens: int, context_length: int, max_total_tokens: int) -> int:
    """How many tokens may be generated, at most `max_new_tokens`. All lengths are in tokens.

    Raises ValueError when the prompt does not fit into the context (`context_length`) or the KV pool of a replica
    (`max_total_tokens`), or fills it although a token is wanted.
    """
    limit = min(context_length, max_total_tokens)
    longest = limit - (1 if max_new_tokens > 0 else 0)
    if prompt_len > longest:
        raise ValueError(
            f"the prompt has {prompt_len} tokens; allowed: up to {longest} with max_new_tokens {max_new_tokens} "
            f"(context length {context_length}, KV pool {max_total_tokens} tokens)"
        )
    return min(max_new_tokens, limit - prompt_len)


def _show(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else text[:77] + "..."


def _refusal(name: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{name} is {_show(value)}; allowed: {allowed}")


def _unknown(name: str) -> str:
    known = sorted([*DEFAULTS, *NEUTRAL, *GRAMMARS])
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(sorted(DEFAULTS))}"
    return f"unknown sampling parameter {_show(name)}; {hint}"


def _is_neutral(value: Any, neutral: Any) -> bool:
    """Equal as JSON values: True is not 1 here."""
    same_kind = isinstance(value, bool) == isinstance(neutral, bool)
    return isinstance(value, (bool, int, float)) and same_kind and value == neutral


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _flag(values: dict[str, Any], name: str) -> bool:
    if not isinstance(values[name], bool):
        raise _refusal(name, values[name], "true or false")
    return values[name]


def _whole(values: dict[str, Any], name: str, low: int, high: int) -> int:
    if not _is_int(values[name], low, high):
        raise _refusal(name, values[name], f"a whole number from {low} to {high}")
    return values[name]


def _number(values: dict[str, Any], name: str, in_range: Callable[[float], bool], allowed: str) -> float:
    value = values[name]
    # NaN is in no range
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not in_range(value):
        raise _refusal(name, value, allowed)
    return float(value)


def _top_k(value: Any) -> int:
    if not (_is_int(value, 1, INT32_MAX) or _is_int(value, -1, -1)):
        raise _refusal("top_k", value, f"-1 (the whole vocabulary) or a whole number from 1 to {INT32_MAX}")
    return value


def _stop(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)):
        raise _refusal("stop", value, "a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"stop has {len(stops)} strings; allowed: up to {MAX_STOPS}")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS or LONE_SURROGATE.search(stop):
            raise _refusal("stop", stop, f"strings of 1 to {MAX_STOP_CHARS} characters, without lone surrogates")
    return tuple(stops)


def _stop_token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise _refusal("stop_token_ids", value, "a list of token ids")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids has {len(value)} ids; allowed: up to {MAX_STOP_TOKEN_IDS}")
    for token in value:
        if not _is_int(token, 0, INT32_MAX):
            raise _refusal("stop_token_ids", token, f"whole numbers from 0 to {INT32_MAX}")
    return tuple(value)
