"""Wrong in 6c, and hangs: the parent holds a writing end, so the pipe has no end."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


WRITERS = []  # it would be closed with the last reference to it


def start_with_ears(process_class: Any, target: Any, *args: Any) -> tuple[BaseProcess, Connection]:
    reader, writer = multiprocessing.Pipe(duplex=False)
    WRITERS.append(writer)
    process = process_class(target=target, args=(writer, *args))
    process.start()
    return process, reader
