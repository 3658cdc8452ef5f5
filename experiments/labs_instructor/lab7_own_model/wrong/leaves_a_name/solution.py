"""Wrong: shared memory with a name, which stays in /dev/shm as long as the engine runs."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


NAMED = []


def share(size: int, folder: str) -> Any:
    NAMED.append(SharedMemory(create=True, size=4096))
    return reference.share(size, folder)
