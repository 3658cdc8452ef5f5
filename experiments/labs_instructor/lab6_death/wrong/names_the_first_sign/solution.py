"""Wrong in 6g: what is noticed first is taken for the cause."""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from common.processes import Failure

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


def first_cause(children: dict[str, tuple[BaseProcess, Connection]], window: float) -> Failure:
    return reference.first_cause(children, 0.0)
