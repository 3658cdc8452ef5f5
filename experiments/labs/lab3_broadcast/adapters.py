"""What the tests know of the files that you edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common.channels import Receiver
from common.messages import Request, TurnOutput
from common.parallel.broadcast import Msgpack

from . import image, loop, packed, solution
from .wire import Wire


def cost(lengths: list[int], ranks: int) -> tuple[int, int]:
    return solution.cost(lengths, ranks)


def length_header(length: int) -> torch.Tensor:
    return solution.length_header(length)


def length_of(header: torch.Tensor) -> int:
    return solution.length_of(header)


def broadcast(wire: Wire, room: Callable[[int], torch.Tensor] = solution.fresh_room) -> Any:
    """With the engine's own encoding."""
    return solution.Broadcast(wire, Msgpack(list[Request]), room)


def packed_broadcast(wire: Wire, block: int) -> Any:
    return packed.PackedBroadcast(wire, Msgpack(list[Request]), block)


def lead(requests: Receiver, broadcast: Any, worker: Any, send: Callable[[TurnOutput], None]) -> None:
    loop.lead(requests, broadcast, worker, send)


def follow(broadcast: Any, worker: Any) -> None:
    loop.follow(broadcast, worker)


def encoding() -> Any:
    return image.BytesEncoding()


def kept_room() -> Callable[[int], torch.Tensor]:
    return image.KeptBuffer().room
