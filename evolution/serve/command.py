"""`serve`: take the port, start the engine, answer until a signal or the engine's end."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop

from common.args import engine_args_from
from common.processes import configure_logging
from evolution.checks import resolve_args
from evolution.engine import Engine, EngineError
from evolution.serve.app import make_app
from evolution.serve.calls import Service
from evolution.serve.listen import is_loopback, listen, url
from evolution.serve.mailroom import Mailroom
from evolution.serve.metrics import Metrics
from evolution.serve.protocol import Protocol

LOOK = 0.05  # seconds between two looks at the engine and at the signals
# After the engine's end: callers are told, and a probe may see a 503. Then the port is closed.
LAST_WORDS = 0.5
# A first signal lets what runs end within this; a second does not.
GRACE = 5.0
# Seconds that an idle connection is kept: longer than clients keep theirs (httpx 5, aiohttp 15), so that none sends a
# request on one that is being closed at that moment.
KEEP_ALIVE = 75
KEY_VARIABLE = "EVOLUTION_API_KEY"


def serve_command(options: argparse.Namespace) -> int:
    """0 after a signal, 1 when the engine could not start or has failed. ValueError for what cannot work."""
    args, _ = resolve_args(engine_args_from(options))
    if options.max_queued_requests < 0:
        raise ValueError(f"--max-queued-requests must be 0 or more, not {options.max_queued_requests}")
    template = _read_template(options.chat_template)
    key = _api_key(options)
    configure_logging(args.log_level)
    with listen(options.host, options.port) as listener:
        address = url(listener)
        if not is_loopback(listener) and not key:
            print(f"{address} is open to the network without --api-key: who reaches it may use it", file=sys.stderr)
        try:
            engine = Engine(**{name: getattr(args, name) for name in args.__dataclass_fields__})
        except EngineError as error:
            print(f"python -m evolution serve: {error}", file=sys.stderr)
            return 1
        with engine:
            return _serve(engine, options, key, template, listener, address)


def _serve(
    engine: Engine,
    options: argparse.Namespace,
    key: str | None,
    template: str | None,
    listener: socket.socket,
    address: str,
) -> int:
    args = engine.args

    async def run() -> str | None:
        metrics = Metrics(args.model_path, engine.load, args.dp_size, engine.make_requests.pool_tokens)
        most = args.dp_size * args.max_running_requests + options.max_queued_requests
        service = Service(engine, Mailroom(asyncio.get_running_loop()), metrics, most, template)
        config = uvicorn.Config(
            make_app(service, key),
            http=Protocol,
            ws="none",
            lifespan="off",
            server_header=False,
            log_config=None,
            access_log=args.log_level.lower() in ("info", "debug"),
            timeout_graceful_shutdown=int(GRACE),
            timeout_keep_alive=KEEP_ALIVE,
        )
        server = Server(config)
        watch = asyncio.create_task(_watch(server, engine))
        print(f"serving on {address} (stage {args.stage}, TP {args.tp_size}, DP {args.dp_size})", flush=True)
        await server.serve(sockets=[listener])
        for sig in (signal.SIGINT, signal.SIGTERM):  # it ends already
            signal.signal(sig, signal.SIG_IGN)
        return await watch

    gc.freeze()  # what the start has made stays
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cause = runner.run(run())
    if cause:
        print(f"python -m evolution serve: {cause}", file=sys.stderr)
        return 1
    return 0


async def _watch(server: Server, engine: Engine) -> str | None:
    """Ends the server when the engine has failed, and returns the whole cause; ends the engine when asked to end."""
    while not server.should_exit and engine.health().ok:
        await asyncio.sleep(LOOK)
    if not engine.health().ok:
        await asyncio.sleep(LAST_WORDS)
        server.config.timeout_graceful_shutdown = 1  # of clients that do not read
        server.should_exit = True
        return engine.failure
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GRACE - 2
    while engine.outstanding and loop.time() < deadline and not server.asked_twice:
        await asyncio.sleep(LOOK)
    # Not on the loop's own threads: calls that wait for a reply of the engine may hold all of them.
    with ThreadPoolExecutor(1) as thread:
        await loop.run_in_executor(thread, engine.shutdown)
    return None


class Server(uvicorn.Server):
    """Its signals end it, and are not raised once more at the end: to be asked to stop is no failure."""

    asked_twice = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.asked_twice = self.should_exit
        self.should_exit = True


def _api_key(options: argparse.Namespace) -> str | None:
    key = options.api_key if options.api_key is not None else os.environ.get(KEY_VARIABLE)
    if key is not None and (not key or not key.isascii() or not key.isprintable() or key != key.strip()):
        raise ValueError("--api-key must be printable ASCII characters, at least one, without spaces around them")
    return key


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--chat-template {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
