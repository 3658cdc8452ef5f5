"""The routes, under old and new names, and the OpenAPI document of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from pydantic.json_schema import models_json_schema

from evolution.serve import info, schemas
from evolution.serve.bodies import MAX_BODY_BYTES, Body
from evolution.serve.calls import Service
from evolution.serve.chat import ChatBody, chat_completions
from evolution.serve.completions import CompletionBody, completions
from evolution.serve.errors import install_handlers
from evolution.serve.guard import Guard
from evolution.serve.native import GenerateBody, generate

BODIES: list[type[Body]] = [GenerateBody, CompletionBody, ChatBody, info.AbortBody]
_REF = "#/components/schemas/{model}"
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.Error, "description": "The caller's mistake; the message names the field"},
    401: {"model": schemas.Error, "description": "With --api-key: another key, or none"},
    503: {"model": schemas.Error, "description": "The engine has failed or ends"},
}
_NO_SUCH: dict[int | str, dict[str, Any]] = {404: {"model": schemas.Error, "description": "There is no such model"}}
_ERRORS_OF_WORK: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    413: {"model": schemas.Error, "description": "The body is too long"},
    429: {"model": schemas.Error, "description": "Too many requests wait; see Retry-After"},
}
_MAY_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Events with `stream`"}
}


def make_app(service: Service, api_key: str | None = None, max_body_bytes: int = MAX_BODY_BYTES) -> Guard:
    # Without /docs: its page loads scripts from elsewhere.
    app = FastAPI(title="serving-evolution", docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.max_body_bytes = max_body_bytes
    install_handlers(app)

    def get(paths: str, handler: Callable, model: Any = None, more: dict | None = None, **how: Any) -> None:
        for path in paths.split():
            responses = {**_ERRORS, **(more or {})}
            app.add_api_route(path, handler, methods=["GET"], response_model=model, responses=responses, **how)
            app.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)

    def post(
        path: str, handler: Callable, body: type[Body], model: Any, methods: str = "POST", more: Any = None
    ) -> None:
        schema = {"$ref": _REF.format(model=body.__name__)}
        takes = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        responses = {**_ERRORS_OF_WORK, **(more or {})}
        for method in methods.split():
            app.add_api_route(
                path, handler, methods=[method], response_model=model, responses=responses, openapi_extra=takes
            )

    get("/health", info.health, schemas.Health)
    get("/health_generate", info.Probe(), response_class=Response)
    get("/get_model_info /model_info", info.model_info, schemas.ModelInfo)
    get("/get_server_info /server_info /get_server_args", info.server_info, schemas.ServerInfo)
    get("/metrics", info.metrics, response_class=PlainTextResponse)
    get("/v1/models", info.models, schemas.ModelList)
    get("/v1/models/{name:path}", info.model, schemas.ModelCard, _NO_SUCH)
    for method in ("GET", "POST"):
        flushed = schemas.Flushed
        app.add_api_route("/flush_cache", info.flush_cache, methods=[method], response_model=flushed, responses=_ERRORS)
    post("/abort_request", info.abort_request, info.AbortBody, schemas.Aborted)
    results = schemas.Result | list[schemas.Result]
    post("/generate", generate, GenerateBody, results, "POST PUT", _MAY_STREAM)
    post("/v1/completions", completions, CompletionBody, schemas.Completion, more=_MAY_STREAM)
    post("/v1/chat/completions", chat_completions, ChatBody, schemas.ChatCompletion, more=_MAY_STREAM)
    app.openapi = _with_bodies(app.openapi)
    return Guard(app, api_key)


def _with_bodies(openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The routes read their bodies themselves, so FastAPI does not know them."""

    def complete() -> dict[str, Any]:
        document = openapi()
        _, definitions = models_json_schema([(body, "validation") for body in BODIES], ref_template=_REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # a query that is wrong is a 400
        return document

    return complete
