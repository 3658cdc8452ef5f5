"""A broadcast of bytes over a gloo group: the length first, then the content; a single 0 when there is nothing.

Introduced by 0.2.0 and unchanged in 0.4.0. The receiver of `dist.broadcast` must hold a tensor of the right size, so
it has to be told the length before the content. gloo's broadcast is lock-step: nobody runs ahead of the slowest.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
import torch.distributed as dist


class MessageBroadcast:
    """Rank 0 sends, the others receive, messages of one type encoded as msgpack. All ranks call it each turn."""

    def __init__(self, group: dist.ProcessGroup, rank: int, message_type: Any) -> None:
        self._group = group
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(message_type)

    def send(self, message: Any) -> None:
        """Rank 0. An empty list costs one broadcast of a single 0; anything else two."""
        content = bytearray()
        if message != []:
            self._encoder.encode_into(message, content)
        dist.broadcast(torch.tensor([len(content)]), src=0, group=self._group)
        if content:
            dist.broadcast(torch.frombuffer(content, dtype=torch.uint8), src=0, group=self._group)

    def receive(self) -> Any:
        """The other ranks; blocks until rank 0 sends. The single 0 is an empty list."""
        length = torch.empty(1, dtype=torch.int64)
        dist.broadcast(length, src=0, group=self._group)
        if not length.item():
            return []
        content = torch.empty(length.item(), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self._group)
        return self._decoder.decode(content.numpy())
