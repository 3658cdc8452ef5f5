"""The requests that are out: whose stream a text belongs to, and whom to tell when the engine ends."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable

import msgspec

from common.messages import GenerateRequest, TextBatch
from common.tracing import NoTrace, Trace
from evolution.streams import Stream


class EngineError(RuntimeError):
    """The engine has failed or was shut down; the message names the first cause."""


class PendingRequests:
    """`hand_over` on any thread, `take` on the one that receives, `fail` on whichever learns of the end first.

    lock: also held while a message is sent, since no stage has two connections to main.
    send: hands a message to the stage. keeps: a replica may be lost on its own, and its requests are sent again: under
    another id, since the detokenizer may still give texts of the first one. The caller sees none of that.
    """

    def __init__(self, lock: threading.RLock, send: Callable[[GenerateRequest], None], keeps: bool = False) -> None:
        self._lock = lock
        self._send = send
        self._keeps = keeps
        self._streams: dict[str, Stream] = {}  # by the id that the stage knows
        self._requests: dict[str, GenerateRequest] = {}  # the same, where they may be sent again
        self._replica_of: dict[str, int] = {}
        self._resent = itertools.count(1)
        self._failure: EngineError | None = None
        self._count = 0

    def hand_over(self, request: GenerateRequest, inbox: queue.SimpleQueue | None) -> Stream:
        """Gives the request its id and sends it; the clock of its Stream starts here. EngineError after the end."""
        with self._lock:
            self.raise_failure()
            request.rid = f"r{self._count}"
            self._count += 1
            stream = Stream(request.rid, time.perf_counter(), inbox, request.logprobs)
            self._streams[request.rid] = stream
            if self._keeps:
                self._requests[request.rid] = request
            self._send(request)
        return stream

    def take(self, batch: TextBatch, trace: Trace | NoTrace) -> None:
        now = time.perf_counter()
        for chunk in batch.chunks:
            with self._lock:
                stream = self._streams.get(chunk.rid)
                if stream and chunk.finish:
                    self._forget(chunk.rid)
                    trace.request("finished", chunk.rid)
            if stream:
                stream.add(now, chunk)

    def _forget(self, rid: str) -> None:
        del self._streams[rid]
        self._requests.pop(rid, None)
        self._replica_of.pop(rid, None)

    # ------------------------------------------------------------------ replicas that fail on their own

    def dispatched(self, replica: int, rids: list[str]) -> None:
        """These went to this replica. Some of them may have ended."""
        with self._lock:
            for rid in rids:
                if rid in self._streams:
                    self._replica_of[rid] = replica

    def lose(self, replica: int, error: EngineError) -> None:
        """A replica is no more: what it has given nothing of is sent once more, the other callers are told."""
        failed = []
        with self._lock:
            for rid in [rid for rid, where in self._replica_of.items() if where == replica]:
                stream, request = self._streams[rid], self._requests[rid]
                self._forget(rid)
                if stream.started_to_stream:
                    failed.append(stream)
                    continue
                number = next(self._resent)
                request = msgspec.structs.replace(request, rid=f"{stream.rid}.{number}")
                self._streams[request.rid], self._requests[request.rid] = stream, request
                self._send(request)
        for stream in failed:
            stream.fail(EngineError(str(error)))

    def id_in_stage(self, rid: str) -> str:
        """Of a request by the id that its caller knows."""
        if rid in self._streams or not self._keeps:
            return rid
        return next((now for now, stream in list(self._streams.items()) if stream.rid == rid), rid)

    # ------------------------------------------------------------------ the end

    def fail(self, error: EngineError) -> None:
        """Every waiting caller is told, and every later one. The first error stays: it is the cause of the others."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            streams = list(self._streams.values())
            self._streams.clear()
            self._requests.clear()
            self._replica_of.clear()
        for stream in streams:
            stream.fail(EngineError(str(self._failure)))

    def raise_failure(self) -> None:
        """A new exception each time: one object raised in several threads would gather all their tracebacks."""
        if self._failure:
            raise EngineError(str(self._failure))

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def cause(self) -> str:
        """What has ended the engine; "" while nothing has."""
        return str(self._failure) if self._failure else ""

    def __len__(self) -> int:
        return len(self._streams)
