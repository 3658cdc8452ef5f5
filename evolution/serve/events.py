"""What a stream writes: `data: ` and one JSON object a line, an empty line, at the end [DONE]. No comments: clients
that read every line as JSON would break on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from evolution.pending import EngineError
from evolution.serve.calls import Call, unless_gone
from evolution.serve.errors import error_object

# of results by index: the objects to write
Write = Callable[[dict[int, dict[str, Any]]], Iterable[Any]]

# Some clients split a stream at these, too, which JSON may hold as they are.
LINE_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029"]

_encode = msgspec.json.Encoder().encode
GONE = Response(status_code=499)  # nobody reads it


class EventStream(StreamingResponse):
    """However it ends, also when the client leaves, the call is closed."""

    def __init__(self, call: Call, lines: AsyncIterator[bytes]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.close()


async def stream_answer(
    request: Request, call: Call, write: Write, last: Callable[[], Iterable[Any]] = tuple
) -> Response:
    """Starts with the first result: an engine that fails before it is a 503, and no stream. `last`: what comes behind
    the last result."""
    try:
        first = await unless_gone(request, call.news())
    except BaseException:
        call.close()
        raise
    if first is None:
        call.close()
        return GONE
    return EventStream(call, _lines(call, first, write, last))


async def _lines(call: Call, news: dict, write: Write, last: Callable[[], Iterable[Any]]) -> AsyncIterator[bytes]:
    try:
        yield _events(write(news))
        while not call.done:
            news = await call.news()
            if lines := _events(write(news)):
                yield lines
        yield _events(last()) + b"data: [DONE]\n\n"
    except EngineError as error:
        failure = {"error": error_object(503, str(error).splitlines()[0])}
        yield _events([failure]) + b"data: [DONE]\n\n"


def _events(objects: Iterable[Any]) -> bytes:
    lines = b"".join(b"data: %b\n\n" % _encode(each) for each in objects)
    for end, escaped in LINE_ENDS:
        if end in lines:
            lines = lines.replace(end, escaped)
    return lines


async def whole_answer(request: Request, call: Call) -> list[dict[str, Any]] | None:
    """The finished results; None when the client left."""
    try:
        return await unless_gone(request, call.whole())
    finally:
        call.close()


def json_response(body: Any) -> Response:
    return Response(_encode(body), media_type="application/json")
