"""One HTTP call's requests in the engine: let in, awaited, and aborted when nobody wants them any more."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request

from common.messages import GenerateRequest
from common.sampling_params import MAX_N
from evolution.engine import Engine
from evolution.serve.errors import RETRY_AFTER, ApiError
from evolution.serve.mailroom import Mailroom
from evolution.serve.metrics import Metrics
from evolution.streams import Stream

T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """What the routes work with. most_outstanding: requests that may be in the engine at once, running or waiting.
    chat_template: one that stands in for the model's own."""

    engine: Engine
    mailroom: Mailroom
    metrics: Metrics
    most_outstanding: int
    chat_template: str | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    open_calls: set[Call] = field(default_factory=set)

    @property
    def model_name(self) -> str:
        return self.engine.args.model_path

    def abort_all(self) -> bool:
        """Without waiting for it; whether there was anything to abort. Each request still ends, and says so."""
        streams = [stream for call in self.open_calls for stream in call.unfinished()]
        self.engine.abandon(streams)
        return bool(streams)


class Call:
    """Hands the requests over. ApiError 429 when there are too many, 400 for a name in use; EngineError at its end.

    `always`: let in however many there are. Whoever makes a call closes it.
    """

    def __init__(self, service: Service, requests: list[GenerateRequest], always: bool = False) -> None:
        if not always:
            _refuse_too_many(service, len(requests))
        for request in requests:
            request.rid = request.rid or uuid.uuid4().hex
        self._service = service
        self._inbox = service.mailroom.inbox()
        try:
            self.streams = service.engine.submit(requests, self._inbox)
        except ValueError as error:
            raise ApiError(400, str(error), "rid") from None
        self._index = {id(stream): index for index, stream in enumerate(self.streams)}
        self._left = len(self.streams)
        service.open_calls.add(self)
        service.metrics.received(len(self.streams))

    @property
    def done(self) -> bool:
        return self._left == 0

    async def news(self) -> dict[int, dict[str, Any]]:
        """index -> the newest result of each request that has one since the last call. EngineError when it failed."""
        newest = {}
        for stream, now, chunk in await self._inbox.get():
            if isinstance(chunk, Exception):
                self._left -= 1
                raise chunk
            newest[self._index[id(stream)]] = result = stream.take(now, chunk)
            self._service.metrics.generated(len(chunk.new_ids))
            if chunk.finish:
                self._left -= 1
                self._service.metrics.finished(stream, result["meta_info"])
        return newest

    async def whole(self) -> list[dict[str, Any]]:
        """The finished results, in order."""
        results: dict[int, dict[str, Any]] = {}
        while not self.done:
            results |= await self.news()
        return [results[index] for index in range(len(self.streams))]

    def unfinished(self) -> list[Stream]:
        return [stream for stream in self.streams if not stream.done.is_set()]

    def close(self) -> None:
        """Abort what is unfinished, without waiting for it."""
        self._service.open_calls.discard(self)
        # Whoever has left does not read an end that has come since, either: each request counts as ended once.
        self._service.metrics.aborted(self._left)
        self._left = 0
        if unfinished := self.unfinished():
            self._service.engine.abandon(unfinished)


def refuse_too_large(service: Service, prompts: int, params: Any = None) -> None:
    """A call that can never be let in, before anything is made of it. `params`: the sampling parameters, one for all
    prompts or a list, not checked yet."""
    each = params if isinstance(params, list) else [params] * min(prompts, service.most_outstanding + 1)
    wanted = [one.get("n") if isinstance(one, dict) else 1 for one in each]
    # An n that is wrong is refused by the engine, in its own words.
    count = max(prompts, sum(n if isinstance(n, int) and 1 <= n <= MAX_N else 1 for n in wanted))
    if count > service.most_outstanding:
        limit = service.most_outstanding
        raise ApiError(400, f"{count} requests in one call; allowed: {limit} (see --max-queued-requests)")


def _refuse_too_many(service: Service, count: int) -> None:
    limit, out = service.most_outstanding, service.engine.outstanding
    if out + count > limit:
        message = f"{out} requests run or wait, and {limit} may: try again later"
        raise ApiError(429, message, headers=RETRY_AFTER)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None, with the work cancelled, when the client leaves first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
