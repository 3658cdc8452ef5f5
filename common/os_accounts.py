"""What the operating system itself has counted for a process and each of its threads, read from outside. Linux only.

CPU time by thread comes from `/proc/PID/task/TID/schedstat`, in ns. A kernel without it has only the ticks of
`/proc/PID/task/TID/stat`, mostly 10 ms each; an account then says "ticks" as its `source`. A thread that has ended is
gone from the list, but not from the process's CPU clock: that is the total, and what it has more than the threads is
what threads that have ended took. The kernel books a thread that runs at this moment at its next tick, so an account
of a busy thread may be 4 ms behind.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

NS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")
CPU_CLOCK_OF_A_PROCESS = 2  # Linux: the clock id of a process is its pid's complement, shifted by 3, and this


@dataclass(frozen=True)
class ThreadAccount:
    """`cpu_ns`: user and system; `voluntary`, `involuntary`: context switches; all since the thread began.
    `source` of cpu_ns: "schedstat", or "ticks" where the kernel has nothing finer."""

    tid: int
    name: str
    cpu_ns: int
    voluntary: int
    involuntary: int
    source: str = "schedstat"


@dataclass(frozen=True)
class ProcessAccount:
    """`at_ns`: when it was read, on the clock of `time.perf_counter_ns`; `cpu_ns` by the process's clock."""

    pid: int
    at_ns: int
    cpu_ns: int
    threads: list[ThreadAccount]


def process_account(pid: int) -> ProcessAccount:
    """ProcessLookupError: there is no such process."""
    return ProcessAccount(pid, time.perf_counter_ns(), process_cpu_ns(pid), thread_accounts(pid))


def thread_accounts(pid: int) -> list[ThreadAccount]:
    """Of the threads that live now, by tid. ProcessLookupError: there is no such process."""
    try:
        tids = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    accounts = []
    for tid in tids:
        try:
            accounts.append(_thread_account(Path(f"/proc/{pid}/task/{tid}")))
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            continue
    return accounts


def _thread_account(task: Path) -> ThreadAccount:
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
    cpu_ns, source = _cpu_time(task)
    voluntary, involuntary = (int(status[key]) for key in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))
    return ThreadAccount(int(task.name), status["Name"].strip(), cpu_ns, voluntary, involuntary, source)


def _cpu_time(task: Path) -> tuple[int, str]:
    try:
        return int((task / "schedstat").read_text().split()[0]), "schedstat"
    except FileNotFoundError:
        # The name, in brackets, may hold spaces; utime and stime are fields 14 and 15, and the state, after it, is 3.
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * NS_PER_TICK, "ticks"


def process_cpu_ns(pid: int) -> int:
    """User and system time of all its threads, of those that have ended too. ProcessLookupError as above."""
    try:
        return time.clock_gettime_ns(~pid << 3 | CPU_CLOCK_OF_A_PROCESS)
    except OSError:
        raise ProcessLookupError(f"no process {pid}") from None
