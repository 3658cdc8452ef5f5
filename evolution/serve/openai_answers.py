"""What completions and chat answer in common: the envelope, deltas, finish reasons, usage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import Request, Response

from evolution.serve.calls import Call
from evolution.serve.events import GONE, json_response, stream_answer, whole_answer

Result = dict[str, Any]


class Delta:
    """How much of one choice was sent, and what is new."""

    def __init__(self) -> None:
        self.first = True
        self.sent = 0  # characters
        self.tokens = 0  # those whose log-probabilities were sent
        self.offset = 0  # characters of these tokens

    def text(self, result: Result) -> str:
        new = result["text"][self.sent :]
        self.sent = len(result["text"])
        return new


def new_id(kind: str) -> str:
    """Names the answer, and its requests in the engine."""
    return f"{kind}-{uuid.uuid4().hex}"


def envelope(id: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": id, "object": kind, "created": int(time.time()), "model": model}


def finish_reason(result: Result) -> str | None:
    """ "stop", "length" or "abort"."""
    finish = result["meta_info"]["finish_reason"]
    return finish and finish["type"]


def usage(results: dict[int, Result], n: int) -> dict[str, Any]:
    """A prompt counts once, and not for each of its n."""
    prompts = [results[index]["meta_info"] for index in sorted(results) if index % n == 0]
    prompt = sum(meta["prompt_tokens"] for meta in prompts)
    completion = sum(result["meta_info"]["completion_tokens"] for result in results.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(meta["cached_tokens"] for meta in prompts)},
    }


async def answer(
    request: Request,
    call: Call,
    head: dict[str, Any],
    n: int,
    whole_choice: Callable[[int, Result], dict],
    chunk_choices: Callable[[int, Result, Delta], Iterator[dict]] | None,
    wants_usage: bool,
) -> Response:
    """head: the envelope. whole_choice: a choice of a whole answer. chunk_choices: those of a stream's chunks, in
    order; None where no stream is asked for."""
    if chunk_choices is None:
        results = await whole_answer(request, call)
        if results is None:
            return GONE
        choices = [whole_choice(index, result) for index, result in enumerate(results)]
        return json_response({**head, "choices": choices, "usage": usage(dict(enumerate(results)), n)})

    deltas = [Delta() for _ in call.streams]
    newest: dict[int, Result] = {}

    def write(news: dict[int, Result]) -> Iterator[dict]:
        newest.update(news)
        for index, result in news.items():
            for choice in chunk_choices(index, result, deltas[index]):
                yield {**head, "choices": [choice]}

    def last() -> Iterator[dict]:
        if wants_usage:
            yield {**head, "choices": [], "usage": usage(newest, n)}

    return await stream_answer(request, call, write, last)
