"""Sleeping until a moment, and how late the sleep ended by the kernel's own account.

A thread that wakes needs the interpreter's lock before it can read a clock. In a loop that plans while a forward runs
it waits there for the planning to end: a cost of that loop, not a fault of the simulation's sleep. So the kernel says
how late it was, as it wakes the thread: `read` on a timer that goes on once per microsecond returns how often it has
expired.
"""

from __future__ import annotations

import ctypes
import os

CLOCK_MONOTONIC = 1
TFD_CLOEXEC = os.O_CLOEXEC
TFD_TIMER_ABSTIME = 1
INTERVAL_NS = 1000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Sleeper:
    """Of one thread at a time."""

    def __init__(self) -> None:
        """OSError: the system has no timer to give."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)
        self._spec = _TimerSpec(_TimeSpec(0, INTERVAL_NS), _TimeSpec(0, 0))
        if self._file < 0:
            raise _error()

    def until(self, deadline_ns: int) -> int:
        """Sleep until a moment of `time.monotonic_ns`, which may be over; ns by which the sleep ended late, whole
        microseconds."""
        self._spec.value.seconds, self._spec.value.ns = divmod(deadline_ns, 10**9)
        if self._libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise _error()
        expired = int.from_bytes(os.read(self._file, 8), "little")
        return (expired - 1) * INTERVAL_NS

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"no timer for the simulated forward: {os.strerror(number)}")
