"""What the server says of itself, and the switches: health, model, settings, metrics, flush, abort."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from evolution.pending import EngineError
from evolution.serve.bodies import Body, read_body
from evolution.serve.calls import Call, Service
from evolution.serve.errors import ApiError, error_response
from evolution.serve.events import json_response

PROBE_TIMEOUT = 20.0  # seconds, SGLang's
FLUSH_RETRY = 0.05
LONGEST_FLUSH = 600.0


def _service(request: Request) -> Service:
    return request.app.state.service


async def health(request: Request) -> Response:
    """200 while the engine serves, with which replicas are left and what the first of the others died of; 503 with the
    cause from the moment it does not. Asks no process."""
    found = _service(request).engine.health()
    if not found.ok:
        return error_response(503, found.cause)
    return json_response({"status": "degraded" if found.degraded else "ok", **msgspec.structs.asdict(found)})


class Probe:
    """/health_generate: one token through the whole engine. Who asks meanwhile waits for the same one."""

    def __init__(self) -> None:
        self._running: asyncio.Task | None = None

    async def __call__(self, request: Request) -> Response:
        """503 as well when no token came in 20 s."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._generate(_service(request)))
            self._running.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Whoever leaves does not take the probe from the others.
        await asyncio.shield(self._running)
        return Response()

    @staticmethod
    async def _generate(service: Service) -> None:
        params = {"max_new_tokens": 1, "temperature": 0}
        call = Call(service, service.engine.make_requests(input_ids=[[0]], sampling_params=params)[1], always=True)
        try:
            await asyncio.wait_for(call.whole(), PROBE_TIMEOUT)
        except TimeoutError:
            raise EngineError(f"no token came in {PROBE_TIMEOUT:.0f} s") from None
        finally:
            call.close()


async def model_info(request: Request) -> Response:
    args = _service(request).engine.args
    return json_response({"model_path": args.model_path, "tokenizer_path": args.model_path, "is_generation": True})


async def server_info(request: Request) -> Response:
    """The settings, and under internal_states the scheduler's figures of each replica."""
    engine = _service(request).engine
    states = await asyncio.to_thread(engine.stats)
    try:
        ours = version("serving-evolution")
    except PackageNotFoundError:  # run from a folder, not installed
        ours = "unknown"
    settings = dataclasses.asdict(engine.args)
    return json_response({**settings, "version": ours, "internal_states": states})


async def metrics(request: Request) -> Response:
    return Response(_service(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def flush_cache(request: Request, timeout: Annotated[float, Query(ge=0, le=LONGEST_FLUSH)] = 0.0) -> Response:
    """Empties every replica's cache, and answers when all have done so; 400 names those that would not, being busy.
    `timeout`: seconds to try again for."""
    deadline = time.monotonic() + timeout
    while refused := await asyncio.to_thread(_service(request).engine.flush_replicas):
        if time.monotonic() >= deadline:
            reasons = "; ".join(f"replica {replica}: {reason}" for replica, reason in sorted(refused.items()))
            return error_response(400, f"not flushed: {reasons}")
        await asyncio.sleep(FLUSH_RETRY)
    return json_response({"success": True, "message": "every replica has flushed its cache"})


class AbortBody(Body):
    rid: str | None = None
    abort_all: bool | None = None


async def abort_request(request: Request) -> Response:
    """200 also for a request that is not here, which may just have ended; `found` tells."""
    service = _service(request)
    body, _ = await read_body(request, AbortBody)
    if body.abort_all:
        found = service.abort_all()
    elif not body.rid:
        raise ApiError(400, "rid is missing: give the request's id, or abort_all", "rid")
    else:
        found = await asyncio.to_thread(service.engine.abort, body.rid)
    return json_response({"found": found})


async def models(request: Request) -> Response:
    return json_response({"object": "list", "data": [_card(_service(request))]})


async def model(request: Request, name: str) -> Response:
    service = _service(request)
    if name != service.model_name:
        raise ApiError(404, f"there is no model {name[:200]!r} here, only {service.model_name!r}", "model")
    return json_response(_card(service))


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "serving-evolution",
        "root": service.model_name,
        "max_model_len": service.engine.args.context_length,
    }
