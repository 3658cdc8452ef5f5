"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import random

from . import reference_repairs as reference
from .reference_repairs import *


class Lottery(reference.Lottery):
    def __init__(self, seed: int) -> None:
        self.lots = random.Random()
