"""Try the wire out before you build on it; change this file as you like.

python -m experiments.labs.lab3_broadcast.try_wire
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .ranks import RankFailed, run_ranks
from .wire import Wire


def as_it_should_be(wire: Wire) -> list[int]:
    tensor = torch.tensor([7]) if wire.rank == 0 else torch.tensor([-1])
    wire.broadcast(tensor, source=0)
    return tensor.tolist()


def receiver_too_long(wire: Wire) -> list[int]:
    """4 bytes are sent, 8 expected."""
    tensor = torch.tensor([7], dtype=torch.int32) if wire.rank == 0 else torch.tensor([-1], dtype=torch.int64)
    wire.broadcast(tensor, source=0)
    return tensor.tolist()


def show(scenario: Callable[[Wire], list[int]]) -> None:
    try:
        said = "; ".join(f"rank {rank} has {value}" for rank, value in enumerate(run_ranks(scenario, 2, hangs_after=3)))
    except (RankFailed, pytest.fail.Exception) as error:
        said = str(error).splitlines()[0]
    print(f"{scenario.__name__}: {said}")


if __name__ == "__main__":
    show(as_it_should_be)
    show(receiver_too_long)
    # What does a receiver with 8 bytes get from a sender with 16? What if each rank names itself as the source? What if
    # rank 1 calls twice?
