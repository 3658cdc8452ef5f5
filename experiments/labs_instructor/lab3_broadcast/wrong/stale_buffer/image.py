"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import torch

from . import reference_image as reference
from .reference_image import *


class KeptBuffer(reference.KeptBuffer):
    def room(self, length: int) -> torch.Tensor:
        super().room(length)
        return self.memory
