"""`--stage package.module:launch` runs the conformance suite on a stage of a user's own in place of the three."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stage", default=None, help="judge this stage instead of rpyc, broadcast and peer")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" in metafunc.fixturenames:
        given = metafunc.config.getoption("--stage")
        metafunc.parametrize("stage", [given] if given else ["rpyc", "broadcast", "peer"], scope="module")


def descendants() -> set[int]:
    """pids below this process, without multiprocessing's resource tracker."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def run_folders() -> set[str]:
    return {str(path) for path in Path(tempfile.gettempdir()).glob("evo-run-*")}


def names_left_on_disk() -> set[str]:
    """Run folders, and shared memory by name that nobody else uses. An orphan of ours is still of our session."""
    others = {line.split(" ", 5)[-1].strip() for pid in psutil.pids() for line in _foreign_maps(pid)}
    return run_folders() | {str(path) for path in Path("/dev/shm").iterdir()} - others


def _foreign_maps(pid: int) -> list[str]:
    """What a process of another session maps in /dev/shm."""
    try:
        if os.getsid(pid) == os.getsid(0):
            return []
        return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]
    except OSError:  # it has ended, or is another user's
        return []


@pytest.fixture(scope="session", autouse=True)
def private_tmpdir() -> Iterator[None]:
    """Engines of the tests, and of processes they start, keep to a TMPDIR that no other engine on the host uses."""
    with tempfile.TemporaryDirectory(prefix="evo-test-", dir="/tmp") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        yield
        os.environ.pop("TMPDIR")
        tempfile.tempdir = None


@pytest.fixture
def nothing_left_behind():
    """The test leaves no process, run folder or shared memory that was not there before."""
    processes, names = descendants(), names_left_on_disk()
    yield
    assert descendants() - processes == set()
    assert names_left_on_disk() - names == set()
