"""A broadcast of bytes over a gloo group: the length first, then the content; a single 0 when there is nothing.

So since 0.2.0; what changed by 0.4.0 is the encoding of the content (a list of ints became a buffer: 325 ms became
4.7 for 4 MiB at T=2). The receiver of `dist.broadcast` must hold a tensor of the right size, so it has to be told the
length before the content. gloo's broadcast is lock-step: nobody runs ahead of the slowest.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
import torch.distributed as dist

from common.processes import PeerLost


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
        self._broadcast(torch.tensor([len(content)]))
        if content:
            self._broadcast(torch.frombuffer(content, dtype=torch.uint8))

    def receive(self) -> Any:
        """The other ranks; blocks until rank 0 sends. The single 0 is an empty list."""
        length = torch.empty(1, dtype=torch.int64)
        self._broadcast(length)
        if not length.item():
            return []
        content = torch.empty(length.item(), dtype=torch.uint8)
        self._broadcast(content)
        return self._decoder.decode(content.numpy())

    def _broadcast(self, tensor: torch.Tensor) -> None:
        try:
            dist.broadcast(tensor, src=0, group=self._group)
        except RuntimeError as error:  # gloo has no type of its own for a connection that broke
            raise PeerLost(f"the broadcast failed: {error}") from error
