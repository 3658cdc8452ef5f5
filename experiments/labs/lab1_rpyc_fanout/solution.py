"""Lab 1: a router that calls every rank. The handout is README.md."""

from __future__ import annotations

import socket
from typing import Any

import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream


def pack(requests: list[dict]) -> bytes:
    """Task 1a. Requests (ids, numbers, text, lists of them) as bytes."""
    raise NotImplementedError("lab1 task 1a: pack requests")


def unpack(payload: bytes) -> list[dict]:
    """Task 1a. What was packed."""
    raise NotImplementedError("lab1 task 1a: unpack requests")


class RankLost(Exception):
    """The connection to a rank has ended."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} closed its connection")
        self.rank = rank


class ValueFanOut:
    """The router's end of the connections to all ranks of a replica; arguments and answers travel as bytes."""

    def __init__(self, connections: list[rpyc.Connection]) -> None:
        """connections: of rank 0, 1, ... What each offers is `connection.root.step(payload)`, which answers with a
        packed list."""
        raise NotImplementedError("lab1 task 1a: take the connections")

    def step(self, requests: list[dict]) -> list[dict]:
        """Call `step` of every rank with the same requests, packed once; when all have answered, return rank 0's.

        Task 1d: raises what a rank raised; RankLost as soon as a rank is gone, whatever the others do.
        """
        raise NotImplementedError("lab1 task 1a, and task 1d: one step of all ranks")


class ReferenceFanOut:
    """The same, by reference: arguments and answers are lists, of which rpyc sends only a reference."""

    def __init__(self, connections: list[rpyc.Connection]) -> None:
        raise NotImplementedError("lab1 task 1b: take the connections")

    def step(self, requests: list[dict]) -> list[dict]:
        """As above. The result is a plain list."""
        raise NotImplementedError("lab1 task 1b: one step of all ranks")


def take_reference(argument: Any) -> list[dict]:
    """Task 1b, in a rank's process: the list that a reference is of, in one piece."""
    raise NotImplementedError("lab1 task 1b: pull the list")


def give_reference(answer: list[dict]) -> Any:
    """Task 1b, in a rank's process: what `step` returns, so that the router can pull the list."""
    raise NotImplementedError("lab1 task 1b: give an answer")


class CountingChannel(Channel):
    """Task 1c. An rpyc channel that counts what it sends: `messages`, and `sent_bytes` of them before compression."""

    def __init__(self, stream: SocketStream, compress: bool) -> None:
        raise NotImplementedError("lab1 task 1c: count what a channel sends")


def messages_of_a_step(how: str, ranks: int) -> tuple[int, int]:
    """Task 1c. How many messages the router sends in a step, and how many all ranks together do.

    how: value, or reference as the engine's own client (v0.1.5's) does it.
    """
    raise NotImplementedError("lab1 task 1c: count the messages of a step")


def sends_of_a_frame(size: int) -> int:
    """Task 1e. How often rpyc's own `Channel.send` has its stream call the socket's `send`, for `size` bytes that are
    not compressed, if each call takes all that it is given."""
    raise NotImplementedError("lab1 task 1e: count the sends of a frame")


class WholeFrames(Channel):
    """Task 1e. An rpyc channel that gives a whole frame to the socket in one call of `sendall`. The other end is rpyc's
    own. It need not compress."""

    def send(self, data: bytes) -> None:
        raise NotImplementedError("lab1 task 1e: send a frame in one piece")


def tune(sock: socket.socket) -> None:
    """Task 1e. The other cure: a TCP socket that sends what it is given at once, in however many pieces it comes."""
    raise NotImplementedError("lab1 task 1e: tune a socket")
