"""Every error has one shape, OpenAI's and SGLang's: {object, message, type, param, code}. None is a traceback."""

from __future__ import annotations

import re

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from evolution.pending import EngineError

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
RETRY_AFTER = {"Retry-After": "1"}  # seconds


class ApiError(Exception):
    """Answered as it says. `param`: the field of the body that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None, headers: dict | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.headers = status, message, param, headers


def refusal(message: str, fields: dict[str, str], otherwise: str) -> ApiError:
    """400 for what the engine says of a value. `fields`: its name of a field -> the caller's, where they differ;
    `otherwise`: the field to blame if the message begins with none."""
    for engines, callers in fields.items():
        message = re.sub(rf"\b{engines}\b", callers, message)
    named = re.match(r"(\w+)(\[\d+\])*( is | has | needs | forbids |: )", message)
    if named and not message.startswith("the "):
        return ApiError(400, message, named[1])
    return ApiError(400, f"{otherwise}: {message}", otherwise)


def error_object(status: int, message: str, param: str | None = None) -> dict:
    kind = TYPES.get(status, "BadRequestError")
    return {"object": "error", "message": message, "type": kind, "param": param, "code": status}


def error_response(status: int, message: str, param: str | None = None, headers: dict | None = None) -> Response:
    body = msgspec.json.encode(error_object(status, message, param))
    return Response(body, status, headers, media_type="application/json")


def engine_failed(error: Exception) -> Response:
    """The first line of the cause: what follows it may be a traceback."""
    return error_response(503, str(error).splitlines()[0], headers=RETRY_AFTER)


def install_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def of_ours(request: Request, error: ApiError) -> Response:
        return error_response(error.status, error.message, error.param, error.headers)

    @app.exception_handler(EngineError)
    @app.exception_handler(TimeoutError)
    async def of_the_engine(request: Request, error: Exception) -> Response:
        return engine_failed(error)

    @app.exception_handler(HTTPException)
    async def of_routing(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 404:
            return error_response(404, f"there is no {path} here; /openapi.json lists what there is")
        if error.status_code == 405:
            # A path may have a route for each of its methods.
            routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
            allowed = ", ".join(sorted({method for route in routes for method in route.methods}))
            message = f"{request.method} is not allowed on {path}; allowed: {allowed}"
            return error_response(405, message, headers={"Allow": allowed})
        return error_response(error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def of_a_query(request: Request, error: RequestValidationError) -> Response:
        problem = error.errors()[0]
        name = str(problem["loc"][-1])
        return error_response(400, f"{name}: {problem['msg']}", name)

    @app.exception_handler(Exception)
    async def of_the_server(request: Request, error: Exception) -> Response:
        return error_response(500, "the server has made a mistake; its log says where")
