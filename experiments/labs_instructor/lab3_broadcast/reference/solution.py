"""Lab 3, parts 1 and 2: what a broadcast costs, and the broadcast."""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.messages import Request
from common.parallel.broadcast import Encoding

from .wire import Wire

LENGTH_BYTES = 8

# ------------------------------------------------------------------ 1: read and predict


def cost(lengths: list[int], ranks: int) -> tuple[int, int]:
    """What `MessageBroadcast` of `common/parallel/broadcast.py` costs in a replica of so many ranks.

    lengths: for each turn, how many bytes its list of messages has when it is encoded; 0 where nothing arrived.
    Returns (broadcasts, bytes). A broadcast is counted once, however many ranks receive it; bytes are counted once for
    each rank that receives them.
    """
    busy_turns = [length for length in lengths if length]
    sent_once = LENGTH_BYTES * len(lengths) + sum(busy_turns)
    return len(lengths) + len(busy_turns), (ranks - 1) * sent_once


# ------------------------------------------------------------------ 2: length first


def length_header(length: int) -> torch.Tensor:
    """The tensor that tells the other ranks how many bytes will follow: 8 bytes, for any length below 2 ** 62."""
    return torch.tensor([length], dtype=torch.int64)


def length_of(header: torch.Tensor) -> int:
    """What `length_header` made a tensor of."""
    return int(header.item())


def fresh_room(length: int) -> torch.Tensor:
    """uint8 [length]: where to receive so many bytes. Given; task 3g makes a better one."""
    return torch.empty(length, dtype=torch.uint8)


class Broadcast:
    """Rank 0 sends lists of messages, the others receive them. Every rank calls it once a turn.

    encoding: `encode(messages)` gives a uint8 tensor, `decode(tensor)` the messages (an `Encoding` of
    `common/parallel/broadcast.py`). room: gives a uint8 tensor of a length, to receive into.
    """

    def __init__(self, wire: Wire, encoding: Encoding, room: Callable[[int], torch.Tensor] = fresh_room) -> None:
        self.wire = wire
        self.encoding = encoding
        self.room = room

    def send(self, messages: list[Request]) -> None:
        """Rank 0: the length in one broadcast, the content in a second one. Without messages there is no second."""
        if not messages:
            self.wire.broadcast(length_header(0), source=0)
            return
        encoded = self.encoding.encode(messages)
        self.wire.broadcast(length_header(encoded.numel()), source=0)
        self.wire.broadcast(encoded, source=0)

    def receive(self) -> list[Request]:
        """The other ranks: what rank 0 has sent, which may be an empty list."""
        header = length_header(0)
        self.wire.broadcast(header, source=0)
        expected = length_of(header)
        if expected == 0:
            return []
        arriving = self.room(expected)
        self.wire.broadcast(arriving, source=0)
        return self.encoding.decode(arriving)
