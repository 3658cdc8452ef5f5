"""Lab 3, parts 1 and 2: what a broadcast costs, and the broadcast."""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.messages import Request
from common.parallel.broadcast import Encoding

from .wire import Wire

# ------------------------------------------------------------------ 1: read and predict


def cost(lengths: list[int], ranks: int) -> tuple[int, int]:
    """What the engine's broadcast costs, as the handout describes it, in a replica of so many ranks.

    lengths: for each turn, how many bytes its list of messages has when it is encoded; 0 where nothing arrived.
    Returns (broadcasts, bytes). A broadcast is counted once, however many ranks receive it; bytes are counted once for
    each rank that receives them.
    """
    raise NotImplementedError("lab3 task 3a: predict broadcasts and bytes")


# ------------------------------------------------------------------ 2: length first


def length_header(length: int) -> torch.Tensor:
    """The tensor that tells the other ranks how many bytes will follow: 8 bytes, for any length below 2 ** 62."""
    raise NotImplementedError("lab3 task 3b: a length as a tensor")


def length_of(header: torch.Tensor) -> int:
    """What `length_header` made a tensor of."""
    raise NotImplementedError("lab3 task 3b: the length in a header")


def fresh_room(length: int) -> torch.Tensor:
    """uint8 [length]: where to receive so many bytes. Given; task 3g makes a better one."""
    return torch.empty(length, dtype=torch.uint8)


class Broadcast:
    """Rank 0 sends lists of messages, the others receive them. Every rank calls it once a turn.

    encoding: `encode(messages)` gives a uint8 tensor, `decode(tensor)` the messages. room: gives a uint8
    tensor of a length, to receive into.
    """

    def __init__(self, wire: Wire, encoding: Encoding, room: Callable[[int], torch.Tensor] = fresh_room) -> None:
        self.wire = wire
        self.encoding = encoding
        self.room = room

    def send(self, messages: list[Request]) -> None:
        """Rank 0: the length in one broadcast, the content in a second one. Without messages there is no second."""
        if not messages:
            raise NotImplementedError("lab3 task 3d: nothing has arrived")
        raise NotImplementedError("lab3 task 3c: length first, then the content")

    def receive(self) -> list[Request]:
        """The other ranks: what rank 0 has sent, which may be an empty list."""
        raise NotImplementedError("lab3 task 3c: receive the length, then the content")
