"""OpenAI's /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import Field, WithJsonSchema

from common.messages import GenerateRequest, unpack_ids
from common.sampling_params import MAX_TOP_LOGPROBS
from evolution.serve.bodies import read_body, shown
from evolution.serve.calls import Call, Service, refuse_too_large
from evolution.serve.errors import ApiError, refusal
from evolution.serve.openai_answers import Delta, Result, answer, envelope, finish_reason, new_id
from evolution.serve.openai_fields import RENAMED, OpenAIBody
from evolution.serve.openai_logprobs import for_completion
from evolution.serve.ranges import IDS, TEXT, one_or_list

DEFAULT_MAX_TOKENS = 16  # OpenAI's
PROMPT_SCHEMA = {"anyOf": [*one_or_list(TEXT)["anyOf"], *one_or_list(IDS)["anyOf"]]}


class CompletionBody(OpenAIBody):
    # Checked by the engine, which stops at the first that is wrong.
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    echo: bool | None = Field(
        None, description="the prompt before the text, and its log-probabilities before the text's"
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        None, description="log-probabilities of the tokens, and of so many most likely ones in each one's place"
    )
    suffix: str | None = Field(None, description="not supported: empty or null", json_schema_extra={"maxLength": 0})


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body, is_long = await read_body(request, CompletionBody)
    id = new_id("cmpl")
    requests = await asyncio.to_thread(_requests, service, body, id) if is_long else _requests(service, body, id)
    tokenizer = service.engine.tokenizer
    n = body.n or 1
    prompts = [""] * len(requests)
    if body.echo:
        prompts = [tokenizer.decode(unpack_ids(each.input_ids).tolist()) for each in requests]
    call = Call(service, requests)

    def logprobs(index: int, result: Result, delta: Delta) -> dict | None:
        """Of the tokens that were not sent before."""
        if body.logprobs is None:
            return None
        meta = result["meta_info"]
        entries = meta["input_token_logprobs"] + meta["output_token_logprobs"]
        tops = meta["input_top_logprobs"] + meta["output_top_logprobs"] if body.logprobs else None
        since, delta.tokens = delta.tokens, len(entries)
        new = for_completion(tokenizer, entries[since:], tops and tops[since:], delta.offset)
        delta.offset += sum(len(token) for token in new["tokens"])
        return new

    def whole_choice(index: int, result: Result) -> dict:
        return {
            "index": index,
            "text": prompts[index] + result["text"],
            "logprobs": logprobs(index, result, Delta()),
            "finish_reason": finish_reason(result),
        }

    def chunk_choices(index: int, result: Result, delta: Delta) -> Iterator[dict]:
        text = delta.text(result)
        if delta.first:
            text, delta.first = prompts[index] + text, False
        finish = finish_reason(result)
        if text or finish:
            tokens = logprobs(index, result, delta)
            yield {"index": index, "text": text, "logprobs": tokens, "finish_reason": finish}

    head = envelope(id, "text_completion", body.model or service.model_name)
    return await answer(request, call, head, n, whole_choice, chunk_choices if body.stream else None, body.wants_usage)


def _requests(service: Service, body: CompletionBody, id: str) -> list[GenerateRequest]:
    """Named after the answer."""
    body.refuse_what_is_not_supported()
    if body.suffix:
        raise ApiError(400, "suffix is not supported; allowed: none", "suffix")
    prompt, ids = body.prompt, None
    if isinstance(prompt, list) and prompt and not any(isinstance(each, str) for each in prompt):
        prompt, ids = None, prompt
    elif not prompt or isinstance(prompt, list) and not all(isinstance(each, str) and each for each in prompt):
        allowed = "a non-empty string, a list of such, a list of token ids, or a list of such lists"
        raise ApiError(400, f"prompt is {shown(prompt)}; allowed: {allowed}", "prompt")
    elif not isinstance(prompt, (str, list)):
        raise ApiError(400, f"prompt is {shown(prompt)}; allowed: text or token ids", "prompt")
    nested = isinstance(body.prompt, list) and isinstance(body.prompt[0], (str, list))
    refuse_too_large(service, len(body.prompt) if nested else 1, {"n": body.n})
    wanted = body.logprobs is not None
    try:
        requests = service.engine.make_requests(
            prompt,
            body.sampling(DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens),
            ids,
            stream=bool(body.stream),
            return_logprob=wanted,
            logprob_start_len=0 if wanted and body.echo else -1,
            top_logprobs_num=body.logprobs or 0,
        )[1]
    except ValueError as error:
        raise refusal(
            str(error), {**RENAMED, "input_ids": "prompt", "top_logprobs_num": "logprobs"}, "prompt"
        ) from None
    for each in requests:
        each.rid = id
    return requests
