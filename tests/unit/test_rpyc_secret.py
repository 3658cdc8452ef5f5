"""The rpyc of 0.1.5 takes pickles over TCP: only from the router, which knows the run's secret."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import rpyc

from evolution.rpyc_router.constants import V0_1_5
from evolution.rpyc_router.transport import ReferenceCalls, make_server

SECRET = b"0123456789abcdef"


class Rank(rpyc.Service):
    def exposed_step(self, requests: Any) -> Any:
        return [len(requests)]

    exposed_plan = exposed_execute = exposed_step


@pytest.fixture
def port() -> Iterator[int]:
    server = make_server(Rank(), "", V0_1_5, SECRET)
    thread = threading.Thread(target=server.start, daemon=True)
    thread.start()
    yield server.port
    server.close()
    thread.join(5)


def connected(port: int) -> socket.socket:
    """It listens a moment after its thread was started."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


async def call(port: int) -> list[int]:
    calls = ReferenceCalls(0, port, V0_1_5, SECRET)
    try:
        return calls.unpack(await calls.call("step", [1, 2, 3]), list)
    finally:
        calls.close()


@pytest.mark.parametrize("sent", [b"", b"junk", b"0123456789abcdeX" + b"x" * 1000])
def test_a_rank_hangs_up_on_strangers_and_serves_the_router(port: int, sent: bytes) -> None:
    with connected(port) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(5)
        try:
            assert stranger.recv(100) == b""
        except ConnectionResetError:  # it closed with our bytes unread
            pass
    assert asyncio.run(call(port)) == [3]
