"""The options of `serve` beside the engine's."""

from __future__ import annotations

import argparse

from common.args import add_engine_args

DEFAULT_MAX_QUEUED = 4096


def add_serve_args(parser: argparse.ArgumentParser) -> None:
    http = parser.add_argument_group("HTTP")
    http.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (default: 127.0.0.1)")
    http.add_argument("--port", type=int, default=30000, help="0 for any free one (default: 30000)")
    http.add_argument(
        "--api-key",
        metavar="KEY",
        help="want it as `Authorization: Bearer KEY`, but for /health and /metrics; default: $EVOLUTION_API_KEY, which,"
        " unlike an option, other users of the machine cannot see",
    )
    http.add_argument(
        "--max-queued-requests",
        type=int,
        default=DEFAULT_MAX_QUEUED,
        metavar="N",
        help="requests that may wait, beside the --max-running-requests of each replica that may run; the next are"
        f" answered 429 (default: {DEFAULT_MAX_QUEUED})",
    )
    http.add_argument("--chat-template", metavar="FILE", help="Jinja file in place of the model's chat template")
    add_engine_args(parser)
