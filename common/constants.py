"""Constants that say what they do: dataclass fields with a sentence each, which `history eras` prints."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any


def constant(what: str, **default: Any) -> Any:
    return field(metadata={"what": what}, **default)


def explained(constants: Any) -> list[tuple[str, Any, str]]:
    """(name, value, what it does) of a dataclass of constants, and of those inside it, in their order."""
    rows = []
    for f in dataclasses.fields(constants):
        value = getattr(constants, f.name)
        if dataclasses.is_dataclass(value):
            rows += explained(value)
        else:
            rows.append((f.name, value, f.metadata["what"]))
    return rows
