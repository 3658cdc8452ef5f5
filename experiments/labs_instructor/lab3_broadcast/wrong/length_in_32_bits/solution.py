"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import torch

from . import reference_solution as reference
from .reference_solution import *


def length_header(length: int) -> torch.Tensor:
    return torch.tensor([length], dtype=torch.int32)


reference.length_header = length_header  # which its Broadcast calls
