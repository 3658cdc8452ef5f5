"""SGLang's own /generate."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field, WithJsonSchema

from common.sampling_params import MAX_TOP_LOGPROBS
from common.tokenizer import Tokenizer
from evolution.serve.bodies import Body, read_body, shown
from evolution.serve.calls import Call, Service, refuse_too_large
from evolution.serve.errors import ApiError, refusal
from evolution.serve.events import GONE, json_response, stream_answer, whole_answer
from evolution.serve.ranges import IDS, TEXTS, one_or_list, sampling_schema

router = APIRouter()

SAMPLING_SCHEMA = sampling_schema()


def _or_null(schema: dict) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*one_or_list(schema)["anyOf"], {"type": "null"}]})


def _only(name: str) -> dict:
    """That this one of the two prompts is there, and the other is not."""
    other = {"text": "input_ids", "input_ids": "text"}[name]
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}, other: {"type": "null"}}}


class GenerateBody(Body):
    """Either text or input_ids. What may be a list has an entry for each prompt."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_only("text"), _only("input_ids")]})

    text: str | Annotated[list[str], Field(fail_fast=True)] | None = Field(None, json_schema_extra=TEXTS)
    # Checked by the engine, which stops at the first that is wrong.
    input_ids: Annotated[Any, _or_null(IDS)] = None
    sampling_params: Annotated[Any, _or_null(SAMPLING_SCHEMA)] = None
    image_data: str | Annotated[list[str | None], Field(fail_fast=True)] | None = Field(
        None, description="base64, or a data: URL; travels with the request, and no model looks at it"
    )
    rid: str | Annotated[list[str], Field(fail_fast=True)] | None = Field(
        None, description="the caller's name for the request"
    )
    return_logprob: bool | Annotated[list[bool], Field(fail_fast=True)] | None = None
    logprob_start_len: int | Annotated[list[int], Field(fail_fast=True)] | None = Field(
        None, json_schema_extra={"minimum": -1}
    )
    top_logprobs_num: int | Annotated[list[int], Field(fail_fast=True)] | None = Field(
        None, json_schema_extra={"minimum": 0, "maximum": MAX_TOP_LOGPROBS}
    )
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None


async def generate(request: Request) -> Response:
    """`text` of a stream is cumulative. One prompt and n 1: an object, else a list."""
    service: Service = request.app.state.service
    body, is_long = await read_body(request, GenerateBody)
    prepare = asyncio.to_thread(_requests, service, body) if is_long else None
    single, requests = await prepare if prepare else _requests(service, body)
    call = Call(service, requests)
    texts = _TokenTexts(service.engine.tokenizer) if body.return_text_in_logprobs else None

    if body.stream:

        def write(news: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
            return [
                _shape(result, texts) if single else {"index": i, **_shape(result, texts)} for i, result in news.items()
            ]

        return await stream_answer(request, call, write)
    results = await whole_answer(request, call)
    if results is None:
        return GONE
    shaped = [{**_shape(result, texts), "output_ids": result["output_ids"]} for result in results]
    return json_response(shaped[0] if single else shaped)


def _requests(service: Service, body: GenerateBody) -> tuple[bool, list]:
    if (body.text is None) == (body.input_ids is None):
        raise ApiError(400, "give either text or input_ids", "text")
    if body.text is not None and (not body.text or "" in body.text and isinstance(body.text, list)):
        raise ApiError(400, f"text is {shown(body.text)}; allowed: a non-empty string, or a list of such", "text")
    prompts = body.text if body.text is not None else body.input_ids
    nested = isinstance(prompts, list) and isinstance(prompts[0] if prompts else None, (str, list))
    refuse_too_large(service, len(prompts) if nested else 1, body.sampling_params)
    try:
        return service.engine.make_requests(
            body.text,
            body.sampling_params,
            body.input_ids,
            _images(body.image_data),
            bool(body.stream),
            body.return_logprob,
            _logprob_start(body),
            body.top_logprobs_num,
            body.rid,
        )
    except ValueError as error:
        prompt = "text" if body.text is not None else "input_ids"
        of_params = str(error).startswith("unknown sampling parameter")
        raise refusal(str(error), {}, "sampling_params" if of_params else prompt) from None


def _logprob_start(body: GenerateBody) -> int | list[int] | None:
    """Who wants log-probabilities and no tokens means those of the prompt: `select` of SGLang's frontend does so."""
    params = body.sampling_params if isinstance(body.sampling_params, list) else [body.sampling_params]
    no_tokens = all(isinstance(each, dict) and each.get("max_new_tokens") == 0 for each in params)
    return 0 if body.return_logprob and no_tokens and body.logprob_start_len is None else body.logprob_start_len


def _images(data: str | list[str | None] | None) -> bytes | list[bytes | None] | None:
    if isinstance(data, list):
        return [_images(each) for each in data]
    if data is None:
        return None
    encoded = data.partition(",")[2] if data.startswith("data:") else data
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(
            400, f"image_data is {shown(data)}; allowed: base64 or a data: URL (nothing is fetched)", "image_data"
        ) from None


class _TokenTexts(dict):
    """token id -> its text"""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        self[token] = text = self._tokenizer.decode([token], skip_special_tokens=False)
        return text


def _shape(result: dict[str, Any], texts: _TokenTexts | None) -> dict[str, Any]:
    meta_info = result["meta_info"]
    if "input_token_logprobs" in meta_info:
        known = [logprob for logprob, _, _ in meta_info["input_token_logprobs"] if logprob is not None]
        mean = sum(known) / len(known) if known else None
        meta_info = {**meta_info, "normalized_prompt_logprob": mean}  # read by SGLang's frontend up to 0.3
    if texts is not None:
        meta_info = {k: _with_texts(v, texts) if k.endswith("_logprobs") else v for k, v in meta_info.items()}
    return {"text": result["text"], "meta_info": meta_info}


def _with_texts(entries: list | None, texts: _TokenTexts) -> list | None:
    """Of (log-probability, token id, None), or lists of them, or None."""
    if entries is None:
        return None
    return [
        (entry[0], entry[1], texts[entry[1]]) if isinstance(entry, tuple) else _with_texts(entry, texts)
        for entry in entries
    ]
