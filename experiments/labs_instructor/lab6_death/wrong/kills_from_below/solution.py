"""Wrong in 6h: it kills children before their parents."""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def end_all(children: list[BaseProcess]) -> None:
    for child in children:
        try:
            top = psutil.Process(child.pid)
            for process in [*reversed(top.children(recursive=True)), top]:
                process.kill()
                time.sleep(0.05)
        except psutil.NoSuchProcess:
            pass
        child.join()
