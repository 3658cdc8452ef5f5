"""Lab 6, the reference."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from common.processes import Failure
from common.processes.board import RANK_PART, Line
from common.processes.stacks import is_stopped

PR_SET_PDEATHSIG = 1

# ---------------------------------------------------------------------- 1  predict


def main_hears(stage: str, dp_size: int, rank: int, how: str) -> bool:
    if how == "raises in a turn":
        if stage == "rpyc":  # the call fails; only the replica's thread of 0.1.17 looked at it
            return dp_size > 1
        if dp_size > 1:  # the process between them dies, and nobody looks at it
            return False
        return stage == "peer" or rank == 0
    if stage == "rpyc":
        return dp_size > 1
    if dp_size > 1:
        return False
    return stage == "peer" or rank == 1  # the next broadcast breaks in the other one, which raises


# ---------------------------------------------------------------------- 2  detect


def wait_for_death(children: dict[str, BaseProcess], timeout: float) -> tuple[str, int] | None:
    by_sentinel = {process.sentinel: name for name, process in children.items()}
    ended = wait(list(by_sentinel), timeout)
    if not ended:
        return None
    name = by_sentinel[ended[0]]
    children[name].join()  # it has closed its sentinel, and may not have been reaped yet
    return name, children[name].exitcode


def start_with_ears(process_class: Any, target: Any, *args: Any) -> tuple[BaseProcess, Connection]:
    reader, writer = multiprocessing.Pipe(duplex=False)
    process = process_class(target=target, args=(writer, *args))
    process.start()
    writer.close()  # as long as this process has a writing end, there is no end of the pipe
    return process, reader


def last_words(reader: Connection) -> list[Any]:
    words = []
    while True:
        try:
            words.append(reader.recv())
        except (EOFError, OSError):  # OSError: the end came within a message
            return words


# ---------------------------------------------------------------------- 3  die together


def die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be asked about
        os._exit(1)


class Launcher:
    def __init__(self) -> None:
        self._starts: queue.SimpleQueue[tuple[BaseProcess, Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)
        self._thread.start()

    def start(self, process: BaseProcess) -> None:
        future: Future = Future()
        self._starts.put((process, future))
        future.result()

    def close(self) -> None:
        self._starts.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (asked := self._starts.get()) is not None:
            process, future = asked
            try:
                process.start()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)


# ---------------------------------------------------------------------- 4  a hang is no death


def who_hangs(earlier: list[Line], now: list[Line], outstanding: bool) -> str | None:
    if not outstanding or _moved(earlier) != _moved(now):
        return None
    for line in now:
        if is_stopped(line.pid):
            return line.name
    ranks = [line for line in now if line.part == RANK_PART]
    return min(ranks, key=lambda line: (line.steps, line.rank)).name


def _moved(lines: list[Line]) -> int:
    return sum(line.steps + line.taken + line.batches for line in lines)


# ---------------------------------------------------------------------- 5  tell


def first_cause(children: dict[str, tuple[BaseProcess, Connection]], window: float) -> Failure:
    watched = {process.sentinel: name for name, (process, _) in children.items()}
    watched |= {status: name for name, (_, status) in children.items()}
    failures: dict[str, Failure] = {}
    deadline = None
    while watched:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        for name in {watched[sign] for sign in wait(list(watched), left)}:
            process, status = children[name]
            said = _report(status)
            if said is None and process.is_alive():
                process.join(0.05)  # its pipe is at its end: so is it, in a moment
            if said is None and process.is_alive():
                watched.pop(status, None)
                continue
            failures[name] = said or _report(status) or _death_of(name, process)
            watched = {sign: other for sign, other in watched.items() if other != name}
            deadline = deadline or time.monotonic() + window
    return min(failures.values(), key=lambda failure: (failure.severity, failure.when))


def _report(status: Connection) -> Failure | None:
    try:
        return status.recv() if status.poll() else None
    except (EOFError, OSError):
        return None


def _death_of(name: str, process: BaseProcess) -> Failure:
    process.join()
    code = process.exitcode
    if code < 0:
        return Failure(name, process.pid, f"was killed by {signal.Signals(-code).name}", 0, time.monotonic())
    return Failure(name, process.pid, f"exited with code {code}", 3, time.monotonic())


# ---------------------------------------------------------------------- 6  clean up


def end_all(children: list[BaseProcess]) -> None:
    doomed: list[psutil.Process] = []
    for child in children:
        try:
            top = psutil.Process(child.pid)
            doomed += [top, *top.children(recursive=True)]  # before the top dies: then they are no children of it
        except psutil.NoSuchProcess:
            continue
    for process in doomed:  # parents first: a parent that lives may start a child anew
        _kill(process)
    for child in children:
        child.join()
    while any(_lives(process) for process in doomed):
        time.sleep(0.005)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
