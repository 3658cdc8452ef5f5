"""OpenAI's /v1/chat/completions, through the model's chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Field

from common.messages import GenerateRequest
from evolution.serve.bodies import Body, read_body
from evolution.serve.calls import Call, Service, refuse_too_large
from evolution.serve.errors import ApiError, refusal
from evolution.serve.openai_answers import Delta, Result, answer, envelope, finish_reason, new_id
from evolution.serve.openai_fields import RENAMED, OpenAIBody, Tokens
from evolution.serve.openai_logprobs import for_chat

MOST_TOP_LOGPROBS = 20  # OpenAI's


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None


class ChatBody(OpenAIBody):
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    logprobs: bool | None = None
    max_completion_tokens: Tokens | None = Field(None, description="the newer name of max_tokens; this one counts")
    tools: list[Any] | None = Field(None, description="not supported: empty or null", json_schema_extra={"maxItems": 0})
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


async def chat_completions(request: Request) -> Response:
    """Without max_tokens an answer may fill the context."""
    service: Service = request.app.state.service
    body, is_long = await read_body(request, ChatBody)
    id = new_id("chatcmpl")
    requests = await asyncio.to_thread(_requests, service, body, id) if is_long else _requests(service, body, id)
    call = Call(service, requests)

    def logprobs(result: Result, delta: Delta) -> dict | None:
        """Of the tokens that were not sent before."""
        if not body.logprobs:
            return None
        meta = result["meta_info"]
        entries, tops = meta["output_token_logprobs"], meta.get("output_top_logprobs")
        since, delta.tokens = delta.tokens, len(entries)
        return for_chat(service.engine.tokenizer, entries[since:], tops and tops[since:])

    def whole_choice(index: int, result: Result) -> dict:
        return {
            "index": index,
            "message": {"role": "assistant", "content": result["text"]},
            "logprobs": logprobs(result, Delta()),
            "finish_reason": finish_reason(result),
        }

    def chunk_choices(index: int, result: Result, delta: Delta) -> Iterator[dict]:
        if delta.first:
            delta.first = False
            role = {"role": "assistant", "content": ""}
            yield {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
        text, finish = delta.text(result), finish_reason(result)
        if text or finish:
            content = {"content": text} if text else {}
            tokens = logprobs(result, delta)
            yield {"index": index, "delta": content, "logprobs": tokens, "finish_reason": finish}

    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    head = envelope(id, kind, body.model or service.model_name)
    return await answer(
        request, call, head, len(requests), whole_choice, chunk_choices if body.stream else None, body.wants_usage
    )


def _requests(service: Service, body: ChatBody, id: str) -> list[GenerateRequest]:
    """Named after the answer."""
    body.refuse_what_is_not_supported()
    if body.tools:
        raise ApiError(400, "tools are not supported; allowed: none", "tools")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, f"top_logprobs is {body.top_logprobs}, which goes with logprobs true only", "top_logprobs")
    refuse_too_large(service, 1, {"n": body.n})
    engine = service.engine
    tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    try:
        prompt = engine.tokenizer.apply_chat_template([_plain(m) for m in body.messages], service.chat_template)
        ids = engine.make_requests.encode(prompt, add_special_tokens=False)
        if not ids:
            raise ValueError("the chat template makes an empty prompt of these messages")
        requests = engine.make_requests(
            input_ids=ids,
            # What is too long for the context is clipped.
            sampling_params=body.sampling(engine.args.context_length if tokens is None else tokens),
            stream=bool(body.stream),
            return_logprob=bool(body.logprobs),
            top_logprobs_num=body.top_logprobs or 0,
        )[1]
    except ValueError as error:
        raise refusal(str(error), {**RENAMED, "top_logprobs_num": "top_logprobs"}, "messages") from None
    for each in requests:
        each.rid = id
    return requests


def _plain(message: Message) -> dict[str, Any]:
    """The parts of a text joined: templates want a string."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    named = {"name": message.name} if message.name else {}
    return {"role": message.role, "content": content or "", **named}
