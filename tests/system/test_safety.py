"""What another user of the host can do to a running engine: nothing. Only gloo listens, on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import time
from pathlib import Path

import psutil
import pytest

from common.run_folder import create_run_folder, remove_run_folder
from evolution import Engine

TINY = {"model_path": "tiny", "max_total_tokens": 1024}
GREEDY = {"max_new_tokens": 8, "temperature": 0}
NOBODY = 65534
JUNK = [b"", b"\x00" * 64, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000]

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def pids_of(engine: Engine) -> list[int]:
    return [node.pid for report in engine.processes for node in report.walk()]


def listeners(pids: list[int]) -> list[tuple[str, int]]:
    """Addresses on which processes listen for connections of the network."""
    found = []
    for pid in pids:
        for connection in psutil.Process(pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.append(tuple(connection.laddr))
    return found


def as_nobody(act) -> dict:
    """What act() returns, in a fork of this process that is another user."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.wait()
    return json.loads(text)


def refused(act) -> bool:
    try:
        act()
    except PermissionError:
        return True
    return False


def send_junk(addresses: list[tuple[str, int]]) -> int:
    """To each address each kind of junk, the connection left open for a while; how many were taken."""
    connections = []
    for address in addresses:
        for junk in JUNK:
            connection = socket.create_connection(address, timeout=2)
            connection.sendall(junk)
            connections.append(connection)
    time.sleep(0.3)
    for connection in connections:
        connection.close()
    return len(connections)


def test_only_gloo_listens_and_on_loopback(stage):
    with Engine(stage=stage, tp_size=2, **TINY) as engine:
        found = listeners([os.getpid(), *pids_of(engine)])
        assert {address for address, _ in found} <= {"127.0.0.1"}
        # A rank has one for the group of the broadcasts. rpyc's ranks meet through shared memory alone.
        assert len(found) == (0 if stage == "rpyc" else 2)
        check_another_user(engine, found)


@pytest.mark.parametrize("era", ["rpyc", "broadcast"])
def test_the_ports_of_an_era_take_nothing_from_others(era):
    with Engine(stage=era, tp_size=2, constants="era", **TINY) as engine:
        found = listeners([os.getpid(), *pids_of(engine)])
        assert {address for address, _ in found} == {"127.0.0.1"}
        check_another_user(engine, found)


def check_another_user(engine: Engine, addresses: list[tuple[str, int]]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    expected = engine.generate("Hello", GREEDY)["output_ids"]
    pids = [os.getpid(), *pids_of(engine)]

    def act() -> dict:
        return {
            "sent": send_junk(addresses),
            "signals": [refused(lambda pid=pid: os.kill(pid, signal.SIGKILL)) for pid in pids],
            "files": [refused(lambda pid=pid: list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids],
            "memory": [refused(lambda pid=pid: Path(f"/proc/{pid}/mem").open("rb").close()) for pid in pids],
        }

    tried = as_nobody(act)
    assert tried["sent"] == len(addresses) * len(JUNK)
    for what in ("signals", "files", "memory"):
        assert all(tried[what]), f"another user had access: {what} {tried[what]}"
    assert engine.generate("Hello", GREEDY)["output_ids"] == expected
    assert engine.health().ok and engine.flush_cache()


@as_root
def test_nobody_else_reaches_the_sockets_of_a_run_folder():
    folder = create_run_folder()
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/requests")
            server.listen()

            def act() -> dict:
                client = socket.socket(socket.AF_UNIX)
                return {
                    "connect": refused(lambda: client.connect(f"{folder}/requests")),
                    "list": refused(lambda: list(Path(folder).iterdir())),
                    "write": refused(lambda: Path(f"{folder}/x").touch()),
                }

            assert all(as_nobody(act).values())
    finally:
        remove_run_folder(folder)
