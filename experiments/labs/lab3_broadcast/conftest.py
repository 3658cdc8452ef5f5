"""The server of the ranks ends with the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .ranks import end_server


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    yield
    end_server()
