"""`--stage package.module:launch` runs the conformance suite on a stage of a user's own in place of the three."""

from __future__ import annotations

import contextlib
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
    """Run folders, and shared memory by name that no process of somebody else uses."""
    names = {}
    for path in Path("/dev/shm").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names[path] = path.stat().st_ino
    # After the names: whoever made one has mapped it before it had its name. It may have ended since.
    others = {inode for pid in psutil.pids() for inode in _foreign_inodes(pid)}
    return run_folders() | {str(path) for path, inode in names.items() if inode not in others and path.exists()}


def _foreign_inodes(pid: int) -> list[int]:
    """Of what a process that is not ours maps in /dev/shm. (The name there is one that a semaphore had at first.)"""
    try:
        if _is_ours(pid):
            return []
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return [int(line.split()[4]) for line in lines if "/dev/shm/" in line]
    except (OSError, psutil.NoSuchProcess):  # it has ended, or is another user's
        return []


def _is_ours(pid: int) -> bool:
    """Below this process, or an orphan of this session. Another test run of the session has parents of its own."""
    if os.getsid(pid) != os.getsid(0):
        return False
    parents = [parent.pid for parent in psutil.Process(pid).parents()]
    return os.getpid() in (pid, *parents) or parents == [1]


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
