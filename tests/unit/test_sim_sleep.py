"""The kernel's own account of how late a sleep ended, whatever another thread of the process does."""

from __future__ import annotations

import threading
import time

from common.sim.sleep import Sleeper


def test_it_sleeps_until_the_deadline_and_says_how_late_it_was() -> None:
    sleeper = Sleeper()
    for _ in range(5):
        deadline = time.monotonic_ns() + 5_000_000
        late = sleeper.until(deadline)
        after = time.monotonic_ns()
        assert 0 <= late <= after - deadline


def test_a_moment_that_is_over_is_no_sleep() -> None:
    deadline = time.monotonic_ns() - 3_000_000
    late = Sleeper().until(deadline)
    assert 3_000_000 - 1000 <= late <= time.monotonic_ns() - deadline


def test_the_wait_for_the_interpreter_is_not_the_sleeps() -> None:
    """Another thread computes all the time, and gives the interpreter up every 5 ms at most."""
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(1000))

    other = threading.Thread(target=compute)
    other.start()
    sleeper = Sleeper()
    late, woken = [], []
    for _ in range(30):
        deadline = time.monotonic_ns() + 1_000_000
        late.append(sleeper.until(deadline))
        woken.append(time.monotonic_ns() - deadline)
    done.set()
    other.join()
    waited = [whole - own for whole, own in zip(woken, late, strict=True)]
    assert sorted(waited)[15] > 1_000_000, "the interpreter was free: nothing was tested"
    assert all(wait >= 0 for wait in waited)
