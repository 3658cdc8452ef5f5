"""The processes of a running engine."""

from __future__ import annotations

import os

from evolution.engine import Engine


def pids_of(engine: Engine) -> list[int]:
    """Main, which is the calling process, among them."""
    return [os.getpid(), *(node.pid for report in engine.processes for node in report.walk())]
