"""The requests that are out: whose stream a text belongs to, and whom to tell when the engine ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from common.messages import GenerateRequest, TextBatch
from common.tracing import NoTrace, Trace
from evolution.streams import Inbox, Stream


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
        self._named: dict[str, set[str]] = {}  # a caller's name -> the ids of its requests that are out
        self._failure: EngineError | None = None
        self._count = 0

    def hand_over(self, requests: list[GenerateRequest], inbox: Inbox | None) -> list[Stream]:
        """Sends the requests under ids of their own; the clock of each one's Stream starts here.

        What stands in a request's `rid` is the caller's name for it. Requests of one call may share it, and it may come
        again once they have ended, which an id never does. ValueError for a name that is out, EngineError at the end.
        """
        with self._lock:
            for request in requests:
                if request.rid in self._named:
                    raise ValueError(f"rid is {request.rid!r}, and a request of that name is pending; choose another")
            return [self._hand_over(request, inbox) for request in requests]

    def _hand_over(self, request: GenerateRequest, inbox: Inbox | None) -> Stream:
        self.raise_failure()
        name, rid = request.rid, f"r{self._count}"
        self._count += 1
        stream = Stream(rid, time.perf_counter(), inbox, request.logprobs, name)
        self._streams[rid] = stream
        if name:
            self._named.setdefault(name, set()).add(rid)
        self._send(msgspec.structs.replace(request, rid=rid))
        return stream

    def ids_of(self, name: str) -> list[str]:
        """The ids of the requests with this name that are out; of none such, the name may itself be an id."""
        with self._lock:
            return list(self._named.get(name, [name]))

    def take(self, batch: TextBatch, trace: Trace | NoTrace) -> None:
        now = time.perf_counter()
        for chunk in batch.chunks:
            with self._lock:
                stream = self._streams.get(chunk.rid)
                if stream and chunk.finish:
                    self._forget(stream)
                    trace.request("finished", chunk.rid)
            if stream:
                stream.add(now, chunk)

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.rid]
        if stream.name:
            rids = self._named[stream.name]
            rids.remove(stream.rid)
            if not rids:
                del self._named[stream.name]

    def fail(self, error: EngineError) -> None:
        """Every waiting caller is told, and every later one. The first error stays: it is the cause of the others."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            streams = list(self._streams.values())
            self._streams.clear()
            self._named.clear()
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
    def cause(self) -> str | None:
        return str(self._failure) if self._failure else None

    def __len__(self) -> int:
        return len(self._streams)
