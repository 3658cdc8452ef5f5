"""From the bytes of a body to checked fields. Whatever is wrong is a 400 (413: too long) that names the field."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from evolution.serve.errors import ApiError

# The largest image of the experiments is 16 MiB, and base64 makes 21 of it.
MAX_BODY_BYTES = 32 << 20
# A client that is still sending cannot read an answer: a body up to so many times too long is read to its end first.
READ_TO_THE_END = 2
# Longer bodies are parsed and tokenized on a thread, and hold nobody up.
LONG_BODY = 64 << 10
SHOWN = 60  # characters


class Body(BaseModel):
    """No value is converted ("1" is no number), null is as good as absent, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


M = TypeVar("M", bound=Body)


async def read_body(request: Request, model: type[M]) -> tuple[M, bool]:
    """The fields, and whether the body was long."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        # What a web page may send anywhere without asking, such as text/plain, shall not start work here.
        raise ApiError(400, f"content-type is {kind[:SHOWN]!r}; allowed: application/json", "content-type")
    data = await _read(request, request.app.state.max_body_bytes)
    if len(data) > LONG_BODY:
        return await asyncio.to_thread(parse, data, model), True
    return parse(data, model), False


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    parts, size = [], int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if size <= READ_TO_THE_END * limit:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
            elif size > READ_TO_THE_END * limit:
                break
    if size > limit:
        raise ApiError(413, f"the body is longer than {limit} bytes", headers={"Connection": "close"})
    return b"".join(parts)


def parse(data: bytes, model: type[M]) -> M:
    try:
        fields = msgspec.json.decode(data)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, half of a surrogate pair, NaN, a number out of range
        raise ApiError(400, f"the body is not JSON that can be read: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body is {shown(fields)}; allowed: an object of named fields")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error, fields) from None


def _refusal(error: ValidationError, fields: dict[str, Any]) -> ApiError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    # Of a field that may be of several types there is a problem for each; the deepest is of the type that was meant.
    located = [(*_locate(problem, fields), problem) for problem in problems]
    _, name, value, problem = max(located, key=lambda each: each[0])
    reasons = dict.fromkeys(each[3]["msg"] for each in located if each[1] == name)
    words = " or ".join(reason[0].lower() + reason[1:] for reason in reasons)
    return ApiError(400, f"{name} is {'missing' if problem['type'] == 'missing' else shown(value)}: {words}", name)


def _locate(problem: dict[str, Any], fields: Any) -> tuple[int, str, Any]:
    """How deep a field lies, its name, as in messages[0].role, and what stands there."""
    depth, name, value = 0, "", fields
    for key in problem["loc"]:
        if isinstance(value, list) and isinstance(key, int) and key < len(value):
            depth, name, value = depth + 1, f"{name}[{key}]", value[key]
        elif isinstance(value, dict) and (key in value or problem["type"] == "missing"):
            depth, name, value = depth + 1, f"{name}.{key}" if name else str(key), value.get(key)
        # else it says which of several types was tried
    return depth, name or "the body", value


def shown(value: Any) -> str:
    """A value as JSON, in short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 64:
        return "a number of more than 64 bits"
    text = msgspec.json.encode(value[:SHOWN] if isinstance(value, str) else value).decode()
    return text + "..." if isinstance(value, str) and len(value) > SHOWN else text
