"""The answers' bodies, for the OpenAPI document; the routes write them as plain JSON, which is faster."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class Error(BaseModel):
    object: Literal["error"]
    message: str
    type: str
    param: str | None
    code: int


class Result(BaseModel):
    """meta_info: id, finish_reason, prompt_tokens, completion_tokens, cached_tokens, e2e_latency (seconds), and the
    log-probabilities that were asked for."""

    text: str
    output_ids: list[int]
    meta_info: dict[str, Any]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatChoice(BaseModel):
    index: int
    message: dict[str, str]
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class ModelInfo(BaseModel):
    model_path: str
    tokenizer_path: str
    is_generation: bool


class Health(BaseModel):
    """cause: what the first of the replicas that are lost died of."""

    status: Literal["ok", "degraded"]
    ok: bool
    cause: str
    replicas_alive: list[int]
    replicas: int


class ServerInfo(BaseModel):
    """The engine's settings are here too."""

    version: str
    internal_states: list[dict[str, Any]]


class Flushed(BaseModel):
    success: bool
    message: str


class Aborted(BaseModel):
    found: bool
