"""Wrong in 6h: SIGTERM, and only to its own children."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def end_all(children: list[BaseProcess]) -> None:
    for child in children:
        child.terminate()
        child.join(0.5)
        if child.is_alive():
            child.kill()
            child.join()
