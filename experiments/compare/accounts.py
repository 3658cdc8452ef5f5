"""What the operating system says of the processes of an engine: CPU time, context switches, sockets."""

from __future__ import annotations

import os
from collections import Counter

import psutil

from common.os_accounts import ThreadAccount, process_cpu_ns, thread_accounts
from common.processes import ReadyReport
from evolution.engine import Engine
from evolution.stages import process_tree
from experiments.compare.records import Process, Thread


class Accounts:
    """CPU time and context switches of every process of an engine, from here on. The CPU clocks are read together, and
    main's nearest to the workload: reading the rest takes time, in which an era's engine spins."""

    def __init__(self, engine: Engine) -> None:
        self._roles = {node.name: node.holds for node in process_tree(engine.args).walk()}
        self._parents = {os.getpid(): ("main", 0)} | {
            pid: name for report in engine.processes for pid, name in _below(report, os.getpid()).items()
        }
        self._threads = {pid: _threads(pid) for pid in self._parents}
        self._clocks = {pid: process_cpu_ns(pid) for pid in reversed(self._parents)}

    def since(self) -> list[Process]:
        clocks = {pid: process_cpu_ns(pid) for pid in self._parents}
        threads = {pid: _threads(pid) for pid in self._parents}
        return [
            Process(
                name=name,
                role=self._roles.get(name, ""),
                pid=pid,
                parent=parent,
                cpu_us=(clocks[pid] - self._clocks[pid]) // 1000,
                threads=[_difference(now, self._threads[pid].get(tid)) for tid, now in threads[pid].items()],
                sockets=_sockets(pid),
            )
            for pid, (name, parent) in self._parents.items()
        ]


def _sockets(pid: int) -> dict[str, int]:
    kinds = Counter(connection.family.name for connection in psutil.Process(pid).net_connections("all"))
    return {"unix": kinds["AF_UNIX"], "tcp": kinds["AF_INET"] + kinds["AF_INET6"]}


def _below(report: ReadyReport, parent: int) -> dict[int, tuple[str, int]]:
    """pid -> (name, parent's pid) of a process and all that it started."""
    here = {report.pid: (report.name, parent)}
    for child in report.children:
        here |= _below(child, report.pid)
    return here


def _threads(pid: int) -> dict[int, ThreadAccount]:
    return {account.tid: account for account in thread_accounts(pid)}


def _difference(now: ThreadAccount, before: ThreadAccount | None) -> Thread:
    cpu_ns, voluntary, involuntary = (before.cpu_ns, before.voluntary, before.involuntary) if before else (0, 0, 0)
    return Thread(
        now.tid, now.name, (now.cpu_ns - cpu_ns) // 1000, now.voluntary - voluntary, now.involuntary - involuntary
    )
