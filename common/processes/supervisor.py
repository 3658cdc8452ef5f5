"""The parent's side: start children, wait until they are ready, hear of their death at once, end them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.processes.child import EXIT_NO_MAIN_GUARD, child_main
from common.processes.failures import FIRST_CAUSE_WINDOW, STOP_TIMEOUT, Failure, ProcessFailed, ReadyReport
from common.processes.thread_names import name_this_thread

if TYPE_CHECKING:
    import psutil


@dataclass
class _Child:
    name: str
    process: multiprocessing.process.BaseProcess
    status: connection.Connection
    ready: ReadyReport | None = None
    reported: Failure | None = None
    gone: bool = False


class Supervisor:
    """Starts children, waits until they are ready, hears of their death at once, ends them.

    `on_failure(failure)` is called once, on the supervisor's thread, with the first cause.
    """

    def __init__(self, on_failure: Callable[[Failure], None]) -> None:
        self._on_failure = on_failure
        self._children: list[_Child] = []
        self._starts: queue.SimpleQueue[tuple[Callable[[], _Child], Future]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = multiprocessing.Pipe(duplex=False)
        self._changed = threading.Condition()
        self._expecting_exit = False
        self._killing = False  # what ends from now on, ends because of us
        self._closed = False
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ called by the owner

    def start(self, name: str, target: str, kwargs: dict[str, Any], env: Mapping[str, str] | None = None) -> None:
        """Start `target` ("package.module:function"), which gets a `ChildContext` and `kwargs`.

        Raises ProcessFailed when another child has ended unasked.
        """
        future: Future = Future()
        with self._changed:
            if self._killing:
                raise self._refusal(name)
            self._starts.put((lambda: self._spawn(name, target, kwargs, dict(env or {})), future))
            self._wake_writer.send(None)
        future.result()

    def wait_ready(self, timeout: float | None = None) -> list[ReadyReport]:
        """Block until every child is ready. Raises ProcessFailed when one ends first, TimeoutError after `timeout`."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._failure or all(child.ready for child in self._children), timeout
            )
            if self._failure:
                raise ProcessFailed(self._failure)
            if not done:
                missing = ", ".join(child.name for child in self._children if not child.ready)
                raise TimeoutError(f"not ready after {timeout:.0f} s: {missing}")
            return [child.ready for child in self._children if child.ready]

    def raise_failure(self) -> None:
        """Raise ProcessFailed if a child has ended unasked."""
        if self._failure:
            raise ProcessFailed(self._failure)

    def expect_exit(self) -> None:
        """From now on a child that ends with code 0 has ended well."""
        self._expecting_exit = True

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Wait for children that were asked to leave, kill those that did not, and end the supervisor's thread."""
        self.expect_exit()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or all(c.gone for c in self._children), timeout)
        self.kill()

    def kill(self) -> None:
        """Kill every child and wait until it and all below it are gone. Safe to call twice and from any thread."""
        with self._changed:
            self._killing = True  # a child that is just being spawned is killed by `_start_queued`
            doomed = [process for child in self._children for process in _kill_tree(child)]
        deadline = time.monotonic() + STOP_TIMEOUT
        while any(_lives(process) for process in doomed) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._changed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._wake_writer.send(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT)

    # ------------------------------------------------------------------ the supervisor's thread

    def _run(self) -> None:
        name_this_thread("supervisor")
        while not self._closed:
            watched: dict[Any, _Child] = {}
            for child in self._children:
                if not child.gone:
                    watched[child.process.sentinel] = child
                    if not child.status.closed:
                        watched[child.status] = child
            ready = connection.wait([self._wake_reader, *watched])
            events = [watched[obj] for obj in ready if obj is not self._wake_reader]
            if self._wake_reader in ready:
                self._wake_reader.recv()
                self._start_queued()
            if events:
                self._look(events)
        for child in self._children:
            child.process.join(STOP_TIMEOUT)
        with self._changed:
            for child in self._children:
                child.gone = True
                child.status.close()
                if child.process.exitcode is not None:
                    child.process.close()  # its pipes would stay until a garbage collection
            self._wake_reader.close()
            self._wake_writer.close()
            while not self._starts.empty():  # asked for while the end was near
                self._starts.get()[1].set_exception(self._refusal("another process"))

    def _refusal(self, name: str) -> Exception:
        return ProcessFailed(self._failure) if self._failure else RuntimeError(f"{name}: the supervisor has ended")

    def _start_queued(self) -> None:
        while not self._starts.empty():
            spawn, future = self._starts.get_nowait()
            try:
                child = spawn()
            except BaseException as error:
                future.set_exception(error)
                continue
            with self._changed:
                self._children.append(child)
                if self._killing:
                    _kill_tree(child)
            future.set_result(None)

    def _spawn(self, name: str, target: str, kwargs: dict[str, Any], env: dict[str, str]) -> _Child:
        context = multiprocessing.get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        # Children inherit the mask: a ctrl-C that arrives before a child can ignore it must not hit its start-up.
        # Starting the resource tracker, which the first start does, would undo it.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process = context.Process(
            target=child_main, args=(name, os.getpid(), time.monotonic(), target, kwargs, writer), name=name
        )
        # Set before the child exists: it may import torch with the user's script, before any code of ours runs.
        with _environment(env), _importable_main():
            process.start()
        # The parent's copy of the writer would keep the pipe open after the child's death and hide it.
        writer.close()
        return _Child(name, process, reader)

    def _look(self, children: list[_Child]) -> None:
        failures = self._collect(children)
        if failures:
            deadline = time.monotonic() + FIRST_CAUSE_WINDOW
            while (left := deadline - time.monotonic()) > 0:
                others = {c.process.sentinel: c for c in self._children if not c.gone}
                others |= {c.status: c for c in self._children if not c.gone and not c.status.closed}
                if not others:
                    break
                failures += self._collect([others[obj] for obj in connection.wait(list(others), left)])
        with self._changed:
            if failures and self._failure is None:
                self._failure = min(failures, key=lambda f: (f.severity, f.when))
                first = self._failure
            else:
                first = None
            self._changed.notify_all()
        if first:
            self._on_failure(first)

    def _collect(self, children: list[_Child]) -> list[Failure]:
        """Read what these children said and notice those that ended; returns the failures among it."""
        failures = []
        for child in children:
            reported = self._drain_status(child)
            if reported:
                failures.append(reported)
            if not child.gone and connection.wait([child.process.sentinel], 0):
                # Last words may have been written between the drain above and the death.
                reported = self._drain_status(child)
                child.gone = True
                if reported:
                    failures.append(reported)
                elif not child.reported and not (self._expecting_exit and _ended_well(child)):
                    failures.append(_death(child))
        return [] if self._killing else failures

    def _drain_status(self, child: _Child) -> Failure | None:
        failure = None
        try:
            while not child.status.closed and child.status.poll():
                message = child.status.recv()
                if isinstance(message, ReadyReport):
                    child.ready = message
                else:
                    failure = child.reported = child.reported or message
        except (EOFError, OSError):
            child.status.close()
        return failure


def _ended_well(child: _Child) -> bool:
    child.process.join(1)
    return child.process.exitcode in (0, None)


def _death(child: _Child) -> Failure:
    child.process.join(1)  # it has closed its sentinel, and may not have been reaped yet
    code = child.process.exitcode
    when = "" if child.ready else " before it was ready"
    if code == EXIT_NO_MAIN_GUARD:
        cause = (
            "could not start, because importing your script built another Engine: "
            "put the code that uses Engine under `if __name__ == '__main__':`"
        )
        return Failure("Engine", os.getpid(), cause, 0, time.monotonic())
    if code is None:  # somebody else reaped it, or SIGCHLD is ignored
        cause, severity = f"ended, nobody knows how{when}", 3
    elif code < 0:
        cause, severity = f"was killed by {signal.Signals(-code).name}{when}", 0
    else:
        cause, severity = f"exited with code {code}{when}", 3
    return Failure(child.name, child.process.pid or 0, cause, severity, time.monotonic())


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _importable_main() -> Iterator[None]:
    """spawn has a child import the parent's main script. Fed through stdin, as in a shell or an editor, there is none
    to import, but Python 3.11 and 3.12 try all the same: hide its name meanwhile."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def _kill_tree(child: _Child) -> list[psutil.Process]:
    """Kill a child; whoever is below it follows by PDEATHSIG. Returns all of them, as they were before."""
    import psutil  # at the end, not while starting

    if child.gone:
        return []
    try:
        process = psutil.Process(child.process.pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    child.process.kill()
    return tree


def _lives(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
