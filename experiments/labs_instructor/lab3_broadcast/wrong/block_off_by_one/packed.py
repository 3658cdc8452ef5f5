"""Wrong on purpose; wrong.toml says how."""

from __future__ import annotations

import torch

from common.messages import Request

from . import reference_packed as reference
from .reference_packed import *


class PackedBroadcast(reference.PackedBroadcast):
    def send(self, messages: list[Request]) -> None:
        content = self.encoding.encode(messages) if messages else torch.empty(0, dtype=torch.uint8)
        fits = min(content.numel(), max(self.block - 9, 0))
        packed = torch.zeros(self.block, dtype=torch.uint8)
        packed[:8].view(torch.int64)[0] = content.numel()
        packed[8 : 8 + fits] = content[:fits]
        self.wire.broadcast(packed, source=0)
        if fits < content.numel():
            self.wire.broadcast(content[fits:], source=0)

    def receive(self) -> list[Request]:
        packed = torch.empty(self.block, dtype=torch.uint8)
        self.wire.broadcast(packed, source=0)
        content = torch.empty(int(packed[:8].view(torch.int64)[0]), dtype=torch.uint8)
        fits = min(content.numel(), max(self.block - 9, 0))
        content[:fits] = packed[8 : 8 + fits]
        if fits < content.numel():
            self.wire.broadcast(content[fits:], source=0)
        return self.encoding.decode(content) if content.numel() else []
