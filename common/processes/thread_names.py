"""A thread's name as the operating system shows it: Python 3.11 gives its own names to no thread."""

from __future__ import annotations

import ctypes

PR_SET_NAME = 15
LONGEST = 15  # bytes; the kernel cuts off what is more


def name_this_thread(name: str) -> None:
    """Of the calling thread, in `/proc/PID/task/TID/comm`."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:LONGEST], 0, 0, 0)
