"""The requests that are out: whose stream a text belongs to, and whom to tell when the engine ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from common.messages import GenerateRequest, TextBatch
from common.tracing import NoTrace, Trace
from evolution.streams import Stream


class EngineError(RuntimeError):
    """The engine has failed or was shut down; the message names the first cause."""


class PendingRequests:
    """`hand_over` on any thread, `take` on the one that receives, `fail` on whichever learns of the end first.

    lock: also held while a message is sent, since no stage has two connections to main.
    send: hands a message to the stage.
    """

    def __init__(self, lock: threading.RLock, send: Callable[[GenerateRequest], None]) -> None:
        self._lock = lock
        self._send = send
        self._streams: dict[str, Stream] = {}
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
            self._send(request)
        return stream

    def take(self, batch: TextBatch, trace: Trace | NoTrace) -> None:
        now = time.perf_counter()
        for chunk in batch.chunks:
            with self._lock:
                stream = self._streams.get(chunk.rid)
                if stream and chunk.finish:
                    del self._streams[chunk.rid]
                    trace.request("finished", chunk.rid)
            if stream:
                stream.add(now, chunk)

    def fail(self, error: EngineError) -> None:
        """Every waiting caller is told, and every later one. The first error stays: it is the cause of the others."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            streams = list(self._streams.values())
            self._streams.clear()
        for stream in streams:
            stream.fail(EngineError(str(self._failure)))

    def raise_failure(self) -> None:
        """A new exception each time: one object raised in several threads would gather all their tracebacks."""
        if self._failure:
            raise EngineError(str(self._failure))

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def __len__(self) -> int:
        return len(self._streams)
