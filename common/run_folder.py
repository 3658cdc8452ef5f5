"""The run folder: a private place (mode 0700) for socket files and the rendezvous of the ranks, while starting.

Once all processes are connected the folder is removed: sockets and rendezvous files keep working without a name, so
nothing is left on disk however the run ends. A start also sweeps folders of earlier starts that were killed before
that: the folder's name holds its owner's pid and start time. What a command keeps for as long as it runs, such as
traces, is in such a folder too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "evo-run-"
# sockaddr_un holds 107 bytes of path and a NUL; a run folder's name takes at most 40 bytes, its files' names 24.
LONGEST_BASE = 107 - 24 - 40 - 2


def create_run_folder() -> Path:
    """A new private folder, in TMPDIR, or in /tmp when TMPDIR is too long for the path of a socket."""
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > LONGEST_BASE:
        base = Path("/tmp")
    _sweep(base)
    pid = os.getpid()
    started = _start_ticks(pid)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{pid}-{started}-", dir=base))


def remove_run_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """One that is removed at the end of a `with`."""
    folder = create_run_folder()
    try:
        yield folder
    finally:
        remove_run_folder(folder)


def _sweep(base: Path) -> None:
    for folder in sorted(base.glob(f"{PREFIX}*-*-*")):
        with contextlib.suppress(OSError, ValueError):
            if folder.lstat().st_uid == os.getuid() and not _owner_lives(folder.name):
                remove_run_folder(folder)


def _owner_lives(name: str) -> bool:
    pid, started = (int(part) for part in name.removeprefix(PREFIX).split("-")[:2])
    try:
        return _start_ticks(pid) == started
    except OSError:
        return False


def _start_ticks(pid: int) -> int:
    """Clock ticks between boot and the start of a process: with the pid its identity, whatever the wall clock does."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[19])
