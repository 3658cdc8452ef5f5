"""What the children of the hidden tests do."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from . import actors


def middle_until_told(up: Connection, release: Connection, how: int) -> None:
    child = actors.spawn.Process(target=actors.lower, args=(up, os.getpid(), False))
    child.start()
    release.recv()
    actors.end(how)
