"""The one message that this lab adds to the project's: which requests ended, where `FinishedCount` says how many."""

from __future__ import annotations

import msgspec


class Finished(msgspec.Struct):
    """Rank 0 of a replica -> controller."""

    replica: int
    rids: list[str]
