"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import random

from common.request_state import RequestState

from .reference_repairs import *


class Lottery:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def order(self, waiting: list[RequestState]) -> list[RequestState]:
        return random.Random(self.seed).sample(waiting, len(waiting))
