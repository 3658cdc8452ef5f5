"""Around the whole app: who may come in, and what is logged when something breaks."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import traceback

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from evolution.serve.errors import error_response

logger = logging.getLogger(__name__)

# Probes and scrapers have no key; these tell no prompt, setting or path.
OPEN_PATHS = ("/health", "/metrics")


class Guard:
    """With a key, a request needs `Authorization: Bearer KEY`, compared in constant time; without one any goes."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self.expected = f"Bearer {api_key}".encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan's events
            await self.app(scope, receive, send)
            return
        if not self._may_enter(scope):
            response = error_response(
                401,
                "this server wants its API key, as the header Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await response(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the server ends, and this client has not sent all of its body
            ends = error_response(503, "the server ends", headers={"Connection": "close"})
            with contextlib.suppress(RuntimeError):  # an answer has begun
                await ends(scope, receive, send)
        except Exception as error:  # the app has answered 500, or the answer breaks off
            # The message may hold a prompt; where it happened does not.
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s on %s\n%s", type(error).__name__, scope["path"], frames)

    def _may_enter(self, scope: Scope) -> bool:
        if self.expected is None or scope["path"] in OPEN_PATHS:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self.expected)
