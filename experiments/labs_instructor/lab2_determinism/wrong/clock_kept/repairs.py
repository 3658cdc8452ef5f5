"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import time

from common.request_state import RequestState

from .reference_repairs import *


class Aging:
    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.since: dict[str, float] = {}

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        now = time.monotonic()
        self.since = {state.rid: self.since.get(state.rid, now) for state in waiting}

        def place(state: RequestState) -> tuple[bool, int]:
            patient = now - self.since[state.rid] > self.patience / 100
            return not patient, 0 if patient else state.prompt_len

        return sorted(waiting, key=place)
