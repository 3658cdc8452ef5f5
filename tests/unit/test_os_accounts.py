"""The accounts of the operating system: what a thread burned is in its own, and stays in its process's when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from common import os_accounts
from common.os_accounts import NS_PER_TICK, process_cpu_ns, thread_accounts

BURNS = """
import threading, time
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
ended = threading.Thread(target=burn, args=(0.1,))
ended.start()
ended.join()
lives = threading.Thread(target=lambda: (burn(0.05), print(threading.get_native_id(), flush=True), input()))
lives.start()
"""


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_accounts_of_another_process() -> None:
    """The main thread waits for the one that lives; 0.1 s went to one that has ended."""
    with subprocess.Popen([sys.executable, "-c", BURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        tid = int(process.stdout.readline())
        accounts = {account.tid: account for account in thread_accounts(process.pid)}
        total = process_cpu_ns(process.pid)
        process.communicate(b"\n")
    assert set(accounts) == {process.pid, tid}
    ended = total - sum(account.cpu_ns for account in accounts.values())
    # What a thread takes besides, on a busy machine too, is far less than a whole burn; the least is exact, but for a
    # tick that the kernel has not booked yet.
    assert 0.04e9 <= accounts[tid].cpu_ns < 0.3e9
    assert accounts[process.pid].name.startswith("python")
    assert 0.09e9 <= ended < 0.4e9
    with pytest.raises(ProcessLookupError, match=str(process.pid)):
        process_cpu_ns(process.pid)
    with pytest.raises(ProcessLookupError, match=str(process.pid)):
        thread_accounts(process.pid)


def test_they_agree_with_the_threads_own_clock() -> None:
    before = own_account().cpu_ns, time.thread_time_ns()
    burn(0.2)
    time.sleep(0)  # gives the core back for a moment, so that the kernel books what was used
    after = own_account().cpu_ns, time.thread_time_ns()
    assert after[0] - before[0] == pytest.approx(after[1] - before[1], abs=0.05e9)
    # The same clock, read in between.
    first, own, last = time.process_time_ns(), process_cpu_ns(os.getpid()), time.process_time_ns()
    assert first <= own <= last


def own_account() -> os_accounts.ThreadAccount:
    (account,) = (one for one in thread_accounts(os.getpid()) if one.tid == threading.get_native_id())
    return account


def test_a_thread_that_sleeps_switches_by_itself() -> None:
    before = own_account().voluntary
    for _ in range(20):
        time.sleep(0.001)
    assert own_account().voluntary - before >= 20


def test_without_schedstat_ticks_are_counted(tmp_path: Path) -> None:
    """A folder as a kernel without it shows one; the name of the thread holds what is hard to parse."""
    task = tmp_path / "77"
    task.mkdir()
    status = "Name:\tevo) (x 1\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n"
    (task / "status").write_text(status)
    (task / "stat").write_text("77 (evo) (x 1) S 1 77 77 0 -1 4194304 10 0 0 0 30 12 0 0 20 0 1 0 100 0 0\n")
    account = os_accounts._thread_account(task)
    assert account == os_accounts.ThreadAccount(77, "evo) (x 1", 42 * NS_PER_TICK, 5, 6, "ticks")
    (task / "schedstat").write_text("1234567 89 10\n")
    account = os_accounts._thread_account(task)
    assert (account.cpu_ns, account.source) == (1234567, "schedstat")
