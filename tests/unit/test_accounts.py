"""A trace against the operating system's accounts: threads by tid, the process by its clock, nothing counted twice."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from common.os_accounts import ProcessAccount, ThreadAccount, process_account
from common.tracing import make_trace
from report.accounts import Agreement, agreements
from report.trace import Part, ThreadTrace, Turn, load


def account(at: int, cpu: int, **threads: int) -> ProcessAccount:
    """`threads`: t7=50 is thread 7 with 50 ns."""
    return ProcessAccount(1, at, cpu, [ThreadAccount(int(tid[1:]), "x", ns, 0, 0) for tid, ns in threads.items()])


def test_what_is_not_traced_and_what_has_ended() -> None:
    """Thread 7 is traced and took 60 of 61; 8 is not and took 10, 9 began in between and took 5; 4 went to others."""
    loop = ThreadTrace("p", "loop", 1, 7)
    loop.turns += [Turn(begin, False, 60, [Part("idle", begin, begin + 60, -1)]) for begin in (100, 160)]
    caller = ThreadTrace("p", "caller", 1, 8)
    before = account(150, 500, t7=99, t8=30)
    after = account(170, 580, t7=160, t8=40, t9=5)
    rows = agreements([loop, caller], [before], [after])
    assert rows == [Agreement("p", "loop", 60, 61), Agreement("p", "", 75, 80, untraced=15, ended=4)]
    assert rows[1].ratio == 75 / 80
    assert agreements([caller], [before], [after]) == []


def test_a_real_thread_agrees(tmp_path: Path) -> None:
    """Turns of 1 ms of CPU, a hundred between two moments at which the thread waits."""
    go, done = threading.Semaphore(0), threading.Semaphore(0)

    def run() -> None:
        trace = make_trace(str(tmp_path), "p", "worker")
        for _ in range(2):
            for _ in range(100):
                trace.turn()
                trace.part("forward")
                until = time.thread_time() + 0.001
                while time.thread_time() < until:
                    pass
            trace.turn()
            trace.part("idle")
            done.release()
            go.acquire()
        trace.close()

    worker = threading.Thread(target=run)
    worker.start()
    accounts = []
    for _ in range(2):
        done.acquire()
        time.sleep(0.01)  # until it waits
        accounts.append(process_account(os.getpid()))
        go.release()
    worker.join()
    row, of_process = agreements(load(tmp_path), *[[one] for one in accounts])
    assert row.thread == "worker" and row.account > 0.1e9
    assert abs(row.ratio - 1) < 0.03
    assert abs(of_process.ratio - 1) < 0.03
