"""Wrong: rank 0 starts a helper that nobody supervises."""

from __future__ import annotations

import subprocess
from typing import Any

from . import reference_solution as reference


def __getattr__(name: str) -> Any:
    """Everything else is right."""
    return getattr(reference, name)


class Inlet(reference.Inlet):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self._inbox is not None:
            self.helper = subprocess.Popen(["sleep", "30"])
