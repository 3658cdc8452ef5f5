"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import torch

from common.messages import Request

from . import reference_image as reference
from .reference_image import *


class BytesEncoding(reference.BytesEncoding):
    def encode(self, messages: list[Request]) -> torch.Tensor:
        return torch.ByteTensor(super().encode(messages).tolist())

    def decode(self, content: torch.Tensor) -> list[Request]:
        return self.decoder.decode(bytes(content.tolist()))
