"""What all unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a rank's process. OpenMP's waiting threads spin: with fewer free cores than threads, tests take a hundred
    times as long, and of several ranks as threads each would start its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
