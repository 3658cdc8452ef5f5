"""The parent's side: start children, wait until they are ready, hear of their death at once, end them."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing import connection
from typing import Any

from common.processes.board import Board
from common.processes.deaths import death_of, ended_well, kill_tree, lives
from common.processes.failures import FIRST_CAUSE_WINDOW, STOP_TIMEOUT, Failure, ProcessFailed, ReadyReport
from common.processes.spawning import Child, spawn
from common.processes.thread_names import name_this_thread


class Supervisor:
    """Starts children, waits until they are ready, hears of their death at once, ends them.

    `on_failure(failure)` is called once, on the supervisor's thread, with the first cause. `board`: of the engine; a
    new one where there is none yet.
    """

    def __init__(self, on_failure: Callable[[Failure], None], board: Board | None = None) -> None:
        self.board = board or Board()
        self._on_failure = on_failure
        self._on_replica_failure: Callable[[int, Failure], None] | None = None
        self._lost: set[int] = set()  # replicas
        self._hears: Callable[[Failure], bool] = lambda failure: True
        self._children: list[Child] = []
        self._starts: queue.SimpleQueue[tuple[Callable[[], Child], Future]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = multiprocessing.Pipe(duplex=False)
        self._changed = threading.Condition()
        self._expecting_exit = False
        self._killing = False  # what ends from now on, ends because of us
        self._closed = False
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ called by the owner

    def start(
        self,
        name: str,
        target: str,
        kwargs: dict[str, Any],
        env: Mapping[str, str] | None = None,
        replica: int | None = None,
    ) -> None:
        """Start `target` ("package.module:function"), which gets a `ChildContext` and `kwargs`; `replica`: that it is a
        part of, see `tolerate`.

        Raises ProcessFailed when another child has ended unasked.
        """
        future: Future = Future()
        with self._changed:
            if self._killing:
                raise self._refusal(name)
            self._starts.put((lambda: spawn(name, target, kwargs, dict(env or {}), replica, self.board), future))
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

    def tolerate(self, on_replica_failure: Callable[[int, Failure], None]) -> None:
        """From now on a child's failure ends its replica only, as long as there is another one: the rest of it is
        killed, and `on_replica_failure(replica, first cause)` called on the supervisor's thread."""
        self._on_replica_failure = on_replica_failure

    def hear_only(self, hears: Callable[[Failure], bool]) -> None:
        """From now on a child's failure for which `hears` is False is not noticed (`common.supervision`)."""
        self._hears = hears

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
            doomed = [process for child in self._children for process in kill_tree(child)]
        deadline = time.monotonic() + STOP_TIMEOUT
        while any(lives(process) for process in doomed) and time.monotonic() < deadline:
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
            watched: dict[Any, Child] = {}
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
                    kill_tree(child)
            future.set_result(None)

    def _look(self, children: list[Child]) -> None:
        failures = self._collect(children)
        if any(self._hears(failure) for _, failure in failures):
            deadline = time.monotonic() + FIRST_CAUSE_WINDOW
            while (left := deadline - time.monotonic()) > 0:
                others = {c.process.sentinel: c for c in self._children if not c.gone}
                others |= {c.status: c for c in self._children if not c.gone and not c.status.closed}
                if not others:
                    break
                failures += self._collect([others[obj] for obj in connection.wait(list(others), left)])
        failures = [(child, failure) for child, failure in failures if self._hears(failure)]
        if self._on_replica_failure and not self._expecting_exit:
            failures = self._lose_replicas(failures)
        with self._changed:
            if failures and self._failure is None:
                self._failure = _first(failures)
                first = self._failure
            else:
                first = None
            self._changed.notify_all()
        if first:
            self._on_failure(first)

    def _lose_replicas(self, failures: list[tuple[Child, Failure]]) -> list[tuple[Child, Failure]]:
        """Take out the replicas that failed; returns the failures for which that is not enough."""
        left = [(child, failure) for child, failure in failures if child.replica is None]
        replicas = {child.replica for child in self._children if child.replica is not None}
        for replica in sorted({child.replica for child, _ in failures if child.replica is not None}):
            of_it = [(child, failure) for child, failure in failures if child.replica == replica]
            if replicas - self._lost == {replica}:
                left += of_it
                continue
            self._lost.add(replica)
            for child in self._children:
                if child.replica == replica:
                    kill_tree(child)
            self._on_replica_failure(replica, _first(of_it))
        return left

    def _collect(self, children: list[Child]) -> list[tuple[Child, Failure]]:
        """Read what these children said and notice those that ended; returns the failures among it."""
        failures = []
        for child in children:
            reported = self._drain_status(child)
            if reported:
                failures.append((child, reported))
            if not child.gone and connection.wait([child.process.sentinel], 0):
                # Last words may have been written between the drain above and the death.
                reported = self._drain_status(child)
                child.gone = True
                if reported:
                    failures.append((child, reported))
                elif not child.reported and not (self._expecting_exit and ended_well(child)):
                    failures.append((child, death_of(child)))
        if self._killing:
            return []
        return [(child, failure) for child, failure in failures if child.replica not in self._lost]

    def _drain_status(self, child: Child) -> Failure | None:
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


def _first(failures: list[tuple[Child, Failure]]) -> Failure:
    """The cause of the others."""
    return min((failure for _, failure in failures), key=lambda f: (f.severity, f.when))
