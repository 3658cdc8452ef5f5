"""Whether the CPU time in a trace is what the operating system says, by thread and by process.

Both sides at the same two moments, at which the engine has nothing to do: the trace's last reading before each, and
the accounts that were read from outside. A thread that calls into main ends its turn only with its next call, so its
trace does not say what it had used at such a moment; its account stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.os_accounts import ProcessAccount, ThreadAccount
from report.trace import ThreadTrace


@dataclass(frozen=True)
class Agreement:
    """CPU time in ns between the two moments. `thread` "": the process, whose `traced` is the sum of its traced threads
    and, by their accounts, `untraced` of those that are not; its `account` is the process's clock, in which `ended` is
    what threads took that have ended."""

    process: str
    thread: str
    traced: int
    account: int
    untraced: int = 0
    ended: int = 0

    @property
    def ratio(self) -> float:
        return self.traced / self.account if self.account else 1.0


def agreements(
    threads: list[ThreadTrace], before: list[ProcessAccount], after: list[ProcessAccount]
) -> list[Agreement]:
    """Of every traced thread that lived at both moments, and of its process after them."""
    rows = []
    for first, last in zip(before, after, strict=True):
        own = {thread.tid: thread for thread in threads if thread.pid == first.pid and thread.thread != "caller"}
        took = _took(first, last)
        of_threads = []
        for account in last.threads:
            thread = own.get(account.tid)
            traced = _traced(thread, first.at_ns, last.at_ns) if thread else None
            if traced is not None:
                of_threads.append(Agreement(thread.process, thread.thread, traced, took[account.tid]))
        if not of_threads:
            continue
        live = sum(took.values())
        untraced = live - sum(row.account for row in of_threads)
        total = last.cpu_ns - first.cpu_ns
        traced = sum(row.traced for row in of_threads) + untraced
        rows += [*of_threads, Agreement(of_threads[0].process, "", traced, total, untraced, max(0, total - live))]
    return rows


def _took(first: ProcessAccount, last: ProcessAccount) -> dict[int, int]:
    def by_tid(threads: list[ThreadAccount]) -> dict[int, int]:
        return {account.tid: account.cpu_ns for account in threads}

    before = by_tid(first.threads)
    return {tid: cpu - before.get(tid, 0) for tid, cpu in by_tid(last.threads).items()}


def _traced(thread: ThreadTrace, begin: int, end: int) -> int | None:
    first, last = thread.cpu_at(begin), thread.cpu_at(end)
    return None if first is None or last is None else last - first
