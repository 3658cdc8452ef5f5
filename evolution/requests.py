"""From what a caller gives to requests: tokenize, check, clip. Whatever is wrong is a ValueError of one line."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from common.args import EngineArgs
from common.messages import GenerateRequest, ImageData, LogprobParams, SamplingParams, pack_ids
from common.models.config import ModelConfig
from common.sampling_params import (
    LONE_SURROGATE,
    check_length,
    check_token_ids,
    make_logprob_params,
    make_sampling_params,
)
from common.tokenizer import Tokenizer

# Of SamplingParams: what changes which tokens can come out, by looking at logits.
LOGIT_FIELDS = ("repetition_penalty", "frequency_penalty", "presence_penalty", "min_p", "min_new_tokens")

MAX_RID_CHARS = 256
# No token of the usual vocabularies is longer than half of it. What is too long anyhow is not tokenized, which would
# take a second per MB.
MAX_TOKEN_CHARS = 256


class RequestMaker:
    """Works without a running engine, so that bad input is refused before anything starts."""

    def __init__(self, args: EngineArgs, config: ModelConfig, tokenizer: Tokenizer) -> None:
        self.args = args
        self.config = config
        self.tokenizer = tokenizer
        self.pool_tokens: int = args.max_total_tokens  # the ranks may settle on less

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict | list[dict] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: bytes | list[bytes | None] | None = None,
        stream: bool = False,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] = -1,
        top_logprobs_num: int | list[int] = 0,
        rid: str | list[str] | None = None,
    ) -> tuple[bool, list[GenerateRequest]]:
        """Whether a single result is due (one prompt, n 1), and the requests: for each prompt its n together. Their
        `rid` is the caller's name for them, or empty.

        The first of a prompt's requests has the `seed` that it brings, and the others of its n count up from there.
        Without a `seed`, a request's is --random-seed plus its index in the call: no two of a call are the same.
        """
        if (prompt is None) == (input_ids is None):
            raise ValueError("give either a prompt or input_ids")
        single, token_lists = self._encode(prompt) if prompt is not None else _listed(input_ids)
        params = _per_prompt("sampling_params", sampling_params, len(token_lists))
        images = _per_prompt("image_data", image_data, len(token_lists))
        wanted = _per_prompt("return_logprob", return_logprob, len(token_lists))
        starts = _per_prompt("logprob_start_len", logprob_start_len, len(token_lists))
        tops = _per_prompt("top_logprobs_num", top_logprobs_num, len(token_lists))
        names = _names(rid, len(token_lists))
        requests = []
        for index, ids in enumerate(token_lists):
            check_token_ids(ids, self.config.vocab_size)
            logprobs = make_logprob_params(wanted[index], starts[index], tops[index], len(ids))
            for sampling in make_sampling_params(params[index], self.args.random_seed + len(requests)):
                if self.args.device == "sim":
                    _refuse_what_needs_logits(sampling, logprobs)
                self._check_vocabulary(sampling, logprobs)
                most = check_length(len(ids), sampling.max_new_tokens, self.args.context_length, self.pool_tokens)
                sampling = msgspec.structs.replace(sampling, max_new_tokens=most)
                image = _image(images[index])
                requests.append(GenerateRequest(names[index], pack_ids(ids), sampling, stream, image, logprobs))
        return single and len(requests) == 1, requests

    def _check_vocabulary(self, sampling: SamplingParams, logprobs: LogprobParams | None) -> None:
        vocab = self.config.vocab_size
        if logprobs and logprobs.top > vocab:
            raise ValueError(f"top_logprobs_num is {logprobs.top}; allowed: up to {vocab}, the whole vocabulary")
        if sampling.min_new_tokens:
            ends = {*sampling.stop_token_ids, *self.config.eos_token_ids}
            if all(token in ends for token in range(vocab)):
                raise ValueError("min_new_tokens forbids eos and stop token ids, and these are the whole vocabulary")

    def _encode(self, prompt: str | list[str]) -> tuple[bool, list[list[int]]]:
        single = isinstance(prompt, str)
        prompts = [prompt] if single else prompt
        if not isinstance(prompts, (list, tuple)) or not prompts:
            raise ValueError("prompt must be a string or a non-empty list of strings")
        for text in prompts:
            if not isinstance(text, str) or not text:
                raise ValueError(f"a prompt must be a non-empty string, not {text!r}")
        return single, [self.encode(text) for text in prompts]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """As `Tokenizer.encode`; ValueError for a text that cannot fit into the context."""
        most = self.args.context_length
        if len(text) > MAX_TOKEN_CHARS * most:
            raise ValueError(f"the prompt has {len(text)} characters, which are more than {most} tokens")
        return self.tokenizer.encode(text, add_special_tokens)


def _refuse_what_needs_logits(sampling: SamplingParams, logprobs: LogprobParams | None) -> None:
    """On sim. (temperature, top_p and top_k shape a distribution that is not there, and have no effect.)"""
    asked = [name for name in LOGIT_FIELDS if getattr(sampling, name) != getattr(SamplingParams(), name)]
    if logprobs:
        asked.append("return_logprob")
    if asked:
        raise ValueError(f"{asked[0]} needs logits, and --device sim has none: leave it out, or use --device cpu")


def _listed(input_ids: Any) -> tuple[bool, list[list[int]]]:
    if not isinstance(input_ids, (list, tuple)) or not input_ids:
        raise ValueError("input_ids must be a non-empty list of token ids, or a list of such lists")
    nested = [isinstance(ids, (list, tuple)) for ids in input_ids]
    if any(nested) and not all(nested):
        raise ValueError("input_ids mixes token ids and lists of token ids: give one or the other")
    return (False, [list(ids) for ids in input_ids]) if all(nested) else (True, [list(input_ids)])


def _per_prompt(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} is a list of {len(value)} for {count} prompts")
    return list(value)


def _names(rid: str | list[str] | None, count: int) -> list[str]:
    if rid is None:
        return [""] * count
    names = rid if isinstance(rid, (list, tuple)) else [rid]
    if len(names) != count:
        raise ValueError(f"rid has {len(names)} names for {count} prompts; allowed: a list of one string for each")
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_RID_CHARS or LONE_SURROGATE.search(name):
            raise ValueError(f"rid is {name!r:.80}; allowed: a string of 1 to {MAX_RID_CHARS} characters")
    if len(set(names)) < count:
        raise ValueError("rid has the same name twice; allowed: a name for each prompt")
    return list(names)


def _image(data: bytes | None) -> ImageData | None:
    if data is None:
        return None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ValueError(f"image_data must be bytes, not {type(data).__name__}")
    return ImageData(bytes(data), hashlib.sha256(data).hexdigest())
