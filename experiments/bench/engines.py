"""What every bench does with a running engine: start it, name its processes, send requests and wait for them."""

from __future__ import annotations

import os

from common.args import EngineArgs
from common.messages import GenerateRequest
from evolution.engine import Engine
from evolution.streams import Stream


def start(args: EngineArgs) -> Engine:
    return Engine(**vars(args))


def children_of(engine: Engine) -> list[int]:
    """The pids of all processes that it started."""
    return [node.pid for report in engine.processes for node in report.walk()]


def pids_of(engine: Engine) -> list[int]:
    """Main, which is the calling process, and its children."""
    return [os.getpid(), *children_of(engine)]


def finish(engine: Engine, requests: list[GenerateRequest]) -> list[Stream]:
    """Sends all of them at once, and waits for the last token of each."""
    streams = engine.submit(requests)
    for stream in streams:
        stream.result()
    return streams
