"""How long a message takes from rank 0 to the last rank, by its size and by how it is encoded. For `notebook.py`."""

from __future__ import annotations

import random
import time

import torch

from common.messages import Request
from common.parallel.broadcast import Encoding, MessageBroadcast, make_encoding

from . import adapters
from .ranks import run_ranks
from .scenarios import request
from .wire import Wire

ENGINES = ("list of ints", "numpy buffer", "msgpack")  # names of `make_encoding`
YOURS = "yours"


def encodings() -> list[str]:
    """The engine's, and yours when it is written."""
    try:
        adapters.encoding().encode([])
    except NotImplementedError:
        return list(ENGINES)
    return [*ENGINES, YOURS]


def seconds(sizes: list[int], encodings: list[str], repeats: int, ranks: int = 2) -> dict[tuple[str, int], list[float]]:
    """(encoding, bytes of the image) -> for each repeat, s from the call of send until the last rank holds the message.
    Each repeat takes all of them once, in an order of its own."""
    rng = random.Random(0)
    order = []
    for _ in range(repeats):
        cells = [(name, size) for name in encodings for size in sizes]
        order += rng.sample(cells, len(cells))
    # A list of ints of 16 MiB takes seconds.
    stamps = run_ranks(timed, ranks, hangs_after=600.0, order=order)
    result: dict[tuple[str, int], list[float]] = {}
    for place, cell in enumerate(order):
        end = max(stamps[rank][place] for rank in range(1, ranks))
        result.setdefault(cell, []).append((end - stamps[0][place]) / 1e9)
    return result


def timed(wire: Wire, order: list[tuple[str, int]]) -> list[int]:
    """For each message the ns: on rank 0 when `send` was called, on the others when it was there. All ranks of a host
    share that clock. Between two messages everybody waits for the last rank."""
    broadcasts = {name: MessageBroadcast(wire.group, _encoding(name), {}) for name, _ in order}
    image = random.Random(1).randbytes(max(size for _, size in order))
    stamps = []
    done = torch.zeros(1)
    for name, size in order:
        messages: list[Request] = [request("image", image=image[:size])] if wire.rank == 0 else []
        for other in range(1, wire.size):
            wire.broadcast(done, source=other)
        if wire.rank == 0:
            stamps.append(time.monotonic_ns())
            broadcasts[name].send(messages)
        else:
            broadcasts[name].receive()
            stamps.append(time.monotonic_ns())
    return stamps


def _encoding(name: str) -> Encoding:
    return Yours() if name == YOURS else make_encoding(name, list[Request])


class Yours:
    """Your encoding, with what the engine's broadcast counts when it is traced, which here it is not."""

    pickles = copies = 0

    def __init__(self) -> None:
        yours = adapters.encoding()
        self.encode, self.decode = yours.encode, yours.decode
