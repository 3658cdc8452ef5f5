"""The fields that /v1/completions and /v1/chat/completions have in common, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from common.sampling_params import INT32_MAX
from evolution.serve.bodies import Body, shown
from evolution.serve.errors import ApiError
from evolution.serve.ranges import NOT_SUPPORTED, RANGES

GRAMMARS = ("regex", "json_schema", "ebnf")
# The engine's names of fields that callers know by others.
RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "return_logprob": "logprobs"}

Tokens = Annotated[int, Field(ge=0, le=INT32_MAX)]


def _within(name: str) -> Any:
    """A field that the engine checks."""
    return Field(None, json_schema_extra=RANGES[name])


def _not_supported() -> Any:
    return Field(None, description="not supported: null", json_schema_extra=NOT_SUPPORTED)


class StreamOptions(Body):
    include_usage: bool | None = None


class OpenAIBody(Body):
    """OpenAI's fields, and behind them SGLang's."""

    model: str | None = Field(None, description="any name: there is one model, and it answers")
    frequency_penalty: float | None = _within("frequency_penalty")
    logit_bias: dict[str, float] | None = Field(
        None, description="not supported: empty or null", json_schema_extra={"maxProperties": 0}
    )
    max_tokens: Tokens | None = None
    n: int | None = _within("n")
    presence_penalty: float | None = _within("presence_penalty")
    response_format: dict[str, Any] | None = Field(
        None,
        description='{"type": "text"}, or null',
        json_schema_extra={"properties": {"type": {"const": "text"}}, "required": ["type"]},
    )
    seed: int | None = _within("seed")
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = _within("stop")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = _within("temperature")
    top_p: float | None = _within("top_p")

    ignore_eos: bool | None = None
    min_p: float | None = _within("min_p")
    min_tokens: Tokens | None = None
    repetition_penalty: float | None = _within("repetition_penalty")
    skip_special_tokens: bool | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = _within("stop_token_ids")
    top_k: int | None = _within("top_k")
    regex: str | None = _not_supported()
    json_schema: str | None = _not_supported()
    ebnf: str | None = _not_supported()

    def refuse_what_is_not_supported(self) -> None:
        """Fields that would change the answer if they were obeyed."""
        if self.logit_bias:
            raise ApiError(400, "logit_bias is not supported; allowed: none", "logit_bias")
        if self.response_format and self.response_format.get("type") != "text":
            kind = shown(self.response_format.get("type"))
            message = f"response_format.type is {kind}, but constrained output is out of scope; allowed: text"
            raise ApiError(400, message, "response_format")
        for name in GRAMMARS:
            if getattr(self, name) is not None:
                raise ApiError(400, f"{name}: constrained output is out of scope; allowed: none", name)
        if self.stream_options and not self.stream:
            raise ApiError(400, "stream_options goes with stream only", "stream_options")

    def sampling(self, max_tokens: int) -> dict[str, Any]:
        """In the engine's names. Absent fields are None, which it takes for absent."""
        return {
            "max_new_tokens": max_tokens,
            "min_new_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "n": self.n,
            "seed": self.seed,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }

    @property
    def wants_usage(self) -> bool:
        """Of a stream; other answers always have it."""
        return bool(self.stream_options and self.stream_options.include_usage)
