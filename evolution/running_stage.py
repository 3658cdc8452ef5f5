"""A stage that runs, as the main process sees it: its processes, what is sent to it and what comes back, and its end.

```
 Engine ──send──> requests ──> [ stage ] ──> detokenizer ──texts────> receiver thread ──> PendingRequests
                                  └──────────────────────control────> receiver thread ──> ControlCalls, Replicas
 supervisor thread: a process has ended          watchdog thread: nothing is done     ──> everybody who waits
```
"""

from __future__ import annotations

import os
import threading
import time

import zmq

from common.args import EngineArgs
from common.channels import Sender
from common.messages import (
    AbortRequest,
    ControlOut,
    ControlReply,
    Dispatched,
    GenerateRequest,
    LoadReport,
    ReplicaLost,
    Request,
    StopRequest,
    TextBatch,
)
from common.processes import Board, Failure, ProcessFailed, ReadyReport, Supervisor
from common.run_folder import create_run_folder, remove_run_folder
from common.tracing import CallerTraces, NoTrace, Trace
from evolution.control import ControlCalls
from evolution.health import Health
from evolution.pending import EngineError, PendingRequests
from evolution.receiver import AnswerReceiver
from evolution.replicas import Replicas
from evolution.stages import make_endpoints
from evolution.start import StartFailed, start_processes
from evolution.streams import Stream
from evolution.watchdog import Watchdog, hang_limit

STOP_TIMEOUT = 10.0


class RunningStage:
    """Started when it is made; EngineError when it cannot be. `pending`, `calls`: what is out, and how to ask it.
    `load`: the newest report of each replica."""

    def __init__(self, args: EngineArgs, times: dict[str, float]) -> None:
        """times: takes when the steps of the start were done."""
        self.args = args
        self.processes: list[ReadyReport] = []
        self.load: dict[int, LoadReport] = {}
        self._lock = threading.RLock()
        self._board = Board()
        degrades = args.on_replica_failure == "degrade" and args.dp_size > 1
        self.pending = PendingRequests(self._lock, self._send, keeps=degrades)
        self._last_batches = 0
        self._drained = threading.Event()
        self.calls = ControlCalls(args.dp_size, self._lock, self._send, self.pending.raise_failure)
        self._replicas = Replicas(args, self._board, self.pending, self.calls, self.load)
        self._watchdog = Watchdog(self._board, hang_limit(args), self._is_waited_for, self._hangs)
        self._owner = os.getpid()
        self._receiver: AnswerReceiver | None = None
        self._closing = False  # shutdown has begun
        self._closed = False  # nothing that ends from now on is a failure
        self._callers = CallerTraces(args.trace_dir)
        self._start(times)

    def _start(self, times: dict[str, float]) -> None:
        folder = create_run_folder()
        self._supervisor = Supervisor(self._process_failed, self._board)
        self._zmq = zmq.Context()
        try:
            endpoints = make_endpoints(self.args, str(folder))
            self._receiver = AnswerReceiver(self._zmq, endpoints, self.args.trace_dir)
            self.processes = start_processes(self.args, endpoints, self._supervisor, times)
            self._requests = Sender(self._zmq, endpoints.requests, meanwhile=self._supervisor.raise_failure)
        except (ProcessFailed, StartFailed, TimeoutError) as error:
            self._abandon_start()
            raise EngineError(f"the engine could not start: {error}") from None
        except BaseException:
            self._abandon_start()
            raise
        finally:
            # All are connected: sockets and rendezvous files work on without their names.
            remove_run_folder(folder)
        self._receiver.start(self._take_texts, self._take_control, self._receiver_failed)
        self._watchdog.start()
        times["ready"] = time.monotonic()

    def _abandon_start(self) -> None:
        self._closing = self._closed = True
        self._supervisor.kill()
        if self._receiver:
            self._receiver.stop()
        self._zmq.destroy(linger=0)
        self._callers.close()
        self._board.close()

    # ------------------------------------------------------------------ what is sent

    def _send(self, message: Request) -> None:
        """Under the lock: no stage has two connections to main."""
        trace = self._callers.own()
        trace.turn()
        trace.part("send_output")
        if isinstance(message, GenerateRequest):
            trace.request("received", message.rid)
        self._board.to_stage()
        if self.args.dp_size == 1:
            self._board.to_replica(0)
        self._watchdog.work_came()
        self._requests.send(message, trace)
        trace.part("idle")

    def abandon(self, streams: list[Stream]) -> None:
        """Abort what is still unfinished. Nobody waits for the replies: this may be a garbage collection, on whatever
        thread, or an interrupt."""
        with self._lock:
            for stream in streams:
                if id := self.pending.id_of(stream):
                    self._send(AbortRequest(self.calls.next_id(), id))

    @property
    def failure(self) -> str:
        """The first cause of the engine's end, where a process raised with its traceback; "" while it serves."""
        return self.pending.cause

    def health(self) -> Health:
        """Asks no process: it is what the main process knows at this moment."""
        cause = (self.pending.cause or self._replicas.cause).partition("\n")[0]  # without a traceback
        return Health(not self.pending.failed, cause, self._replicas.alive, self.args.dp_size)

    # ------------------------------------------------------------------ on the receiver's thread

    def _take_texts(self, batch: TextBatch, trace: Trace | NoTrace) -> None:
        self.pending.take(batch, trace)
        self._last_batches += batch.last
        if self._last_batches == self.args.dp_size:
            self._drained.set()

    def _take_control(self, message: ControlOut) -> None:
        if isinstance(message, LoadReport):
            self.load[message.replica] = message
        elif isinstance(message, ControlReply):
            self.calls.take(message)
        elif isinstance(message, Dispatched):
            self.pending.dispatched(message.replica, message.rids)
        elif isinstance(message, ReplicaLost):
            self._watchdog.ignore_replica(message.replica)
            self._replicas.lose(message)

    def _receiver_failed(self, error: Exception) -> None:
        self._fail_all(EngineError(f"the main process could not read an answer: {error!r}"))

    # ------------------------------------------------------------------ the end

    def _process_failed(self, failure: Failure) -> None:
        """On the supervisor's thread: tell every caller, then leave no process behind."""
        if self._closed:
            return
        self._fail_all(EngineError(str(ProcessFailed(failure))))
        self._supervisor.kill()

    def _is_waited_for(self) -> bool:
        return bool(self.pending) or self.calls.waiting

    def _hangs(self, failure: Failure, replica: int | None) -> None:
        """On the watchdog's thread."""
        if self._replicas.can_lose(replica):
            self._replicas.kill_hanging(replica, failure)
        else:
            self._process_failed(failure)

    def _fail_all(self, error: EngineError) -> None:
        self.pending.fail(error)
        self.calls.wake()

    def shutdown(self, kill: bool = False) -> None:
        """Stop all processes: asked to leave together, or killed at once with `kill` or while requests are pending.

        Pending calls raise EngineError. Safe to call twice and from several threads.
        """
        if os.getpid() != self._owner:
            return  # a fork of the owner's process ends: the engine is not its own
        with self._lock:
            if self._closing:
                return
            self._closing = True
            orderly = not kill and not self.pending.failed and not self.pending
        try:
            if orderly:
                self._leave_in_order()
        finally:  # also after a second ctrl-C
            self._closed = True
            self._fail_all(EngineError("the engine was shut down"))
            self._supervisor.kill()
            self._watchdog.stop()
            self._receiver.stop()
            self._callers.close()
            self._zmq.destroy(linger=0)
            self._board.close()

    def _leave_in_order(self) -> None:
        self._supervisor.expect_exit()
        try:
            self.calls.ask(StopRequest)
        except (EngineError, TimeoutError):
            return
        self._drained.wait(STOP_TIMEOUT)
        self._closed = True
        self._supervisor.stop()
