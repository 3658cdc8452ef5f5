"""All that the tests and the ranks know of the solution."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import rpyc
from rpyc.core.channel import Channel

from . import solution


def pack(requests: list[dict]) -> bytes:
    return solution.pack(requests)


def unpack(payload: bytes) -> list[dict]:
    return solution.unpack(payload)


@contextlib.contextmanager
def packing() -> Iterator[mock.Mock]:
    """What is packed meanwhile, in this process: its `call_count`."""
    module = sys.modules[solution.ValueFanOut.__module__]
    with mock.patch.object(module, "pack", side_effect=module.pack) as counted:
        yield counted


def value_fan_out(connections: list[rpyc.Connection]) -> Any:
    return solution.ValueFanOut(connections)


def reference_fan_out(connections: list[rpyc.Connection]) -> Any:
    return solution.ReferenceFanOut(connections)


def rank_end(how: str) -> tuple[Callable[[Any], list[dict]], Callable[[list[dict]], Any]]:
    """What a rank does with its argument, and with what it answers."""
    if how == "value":
        return solution.unpack, solution.pack
    return solution.take_reference, solution.give_reference


def counting_channel() -> type[Channel]:
    return solution.CountingChannel


def messages_of_a_step(how: str, ranks: int) -> tuple[int, int]:
    return solution.messages_of_a_step(how, ranks)


def rank_lost() -> type[Exception]:
    return solution.RankLost


def sends_of_a_frame(size: int) -> int:
    return solution.sends_of_a_frame(size)


def whole_frames() -> type[Channel]:
    return solution.WholeFrames


def tune(sock: socket.socket) -> None:
    solution.tune(sock)
