"""Wrong in 6b: it looks every 5 ms whether somebody has died."""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def wait_for_death(children: dict[str, BaseProcess], timeout: float) -> tuple[str, int] | None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for name, process in children.items():
            if not process.is_alive():
                return name, process.exitcode
        time.sleep(0.005)
    return None
