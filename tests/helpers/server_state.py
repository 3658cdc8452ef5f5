"""What a server says of its requests and its KV pool, and what the operating system says of its processes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import httpx
import psutil

from tests.helpers.serving import ServerProcess
from tests.helpers.soak import Tally

QUIET = 10.0  # s in which what was left must have been aborted


def wait_until_quiet(server: ServerProcess) -> None:
    deadline = time.monotonic() + QUIET
    while (stats := server.stats())["running"] or stats["waiting"]:
        assert time.monotonic() < deadline, f"requests that nobody waits for go on: {stats}"
        time.sleep(0.05)


def check_pool(server: ServerProcess) -> None:
    """Every slot of every replica is free or can be, and all are free after a flush."""
    wait_until_quiet(server)
    for state in states(server):
        assert state["free_tokens"] + state["evictable_tokens"] == state["total_tokens"], state
    flushed = server.client.post("/flush_cache?timeout=10")
    assert flushed.status_code == 200, flushed.text
    for state in states(server):
        assert state["free_tokens"] == state["total_tokens"], state


def states(server: ServerProcess) -> list[dict[str, int]]:
    return server.client.get("/get_server_info").json()["internal_states"]


@dataclass(frozen=True)
class Counts:
    """Of requests since the server's start. ended: that came to an end of which their caller was told."""

    received: int
    ended: int
    aborted: int

    @classmethod
    def of(cls, server: ServerProcess) -> Counts:
        text = httpx.get(f"{server.url}/metrics").text

        def value(name: str) -> int:
            return int(float(re.search(rf"^sglang:{name}\{{.*\}} (\S+)$", text, re.MULTILINE)[1]))

        names = ("num_requests_total", "e2e_request_latency_seconds_count", "num_aborted_requests_total")
        return cls(*map(value, names))


def check_counts(before: Counts, after: Counts, tally: Tally) -> None:
    """By the server's own account, too, each request that it took in has ended once: its caller was told, or had
    left."""
    received, ended = after.received - before.received, after.ended - before.ended
    assert tally.accepted <= received <= tally.accepted + tally.perhaps, (received, tally)
    left = after.aborted - before.aborted - tally.aborts
    assert ended + left == received, (received, ended, left, tally)


@dataclass(frozen=True)
class Held:
    """memory: bytes, where a page that several processes share counts in parts (PSS)."""

    memory: int
    files: int
    threads: int


def held_by(server: ServerProcess) -> dict[str, Held]:
    """What each process of the server holds, by name and pid."""
    main = psutil.Process(server.process.pid)
    found = {}
    for process in [main, *main.children(recursive=True)]:
        held = Held(process.memory_full_info().pss, process.num_fds(), process.num_threads())
        found[f"{process.cmdline()[0]} {process.pid}"] = held
    return found
