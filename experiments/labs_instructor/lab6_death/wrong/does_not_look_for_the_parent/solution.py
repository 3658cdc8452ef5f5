"""Wrong in 6d: it asks for the signal and does not look whether the parent is there."""

from __future__ import annotations

import ctypes
import signal
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
