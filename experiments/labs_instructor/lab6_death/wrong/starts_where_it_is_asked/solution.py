"""Wrong in 6e: the child belongs to the thread that asked."""

from __future__ import annotations

import threading
from multiprocessing.process import BaseProcess
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Launcher:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def start(self, process: BaseProcess) -> None:
        with self._lock:
            process.start()

    def close(self) -> None:
        pass
