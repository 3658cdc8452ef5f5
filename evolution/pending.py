"""The requests that are out: whose stream a text belongs to, and whom to tell when the engine, or a replica, ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from common.messages import GenerateRequest, TextBatch
from common.tracing import NoTrace, Trace
from evolution.streams import Inbox, Stream


class EngineError(RuntimeError):
    """The engine has failed or was shut down; the message names the first cause."""


@dataclass
class _Out:
    """request: as it was sent, where it may have to be sent again. replica: which one has it, once that is known."""

    stream: Stream
    request: GenerateRequest | None
    replica: int | None = None


class PendingRequests:
    """`hand_over` on any thread, `take` on the one that receives, `fail` on whichever learns of the end first.

    A request has up to three names: `name`, the caller's own, free again once it has ended; the Stream's `rid`, never
    used twice; and the id that the stage knows, which is the rid, and another one once the request was sent again.

    lock: also held while a message is sent, since no stage has two connections to main.
    send: hands a message to the stage. keeps: a replica may be lost on its own, and its requests are sent again: under
    another id, since the detokenizer may still give texts of the first one. The caller sees none of that.
    """

    def __init__(self, lock: threading.RLock, send: Callable[[GenerateRequest], None], keeps: bool = False) -> None:
        self._lock = lock
        self._send = send
        self._keeps = keeps
        self._out: dict[str, _Out] = {}  # by the id that the stage knows
        self._names: Counter[str] = Counter()
        self._rids = itertools.count()
        self._resent = itertools.count(1)
        self._failure: EngineError | None = None

    def hand_over(self, requests: list[GenerateRequest], inbox: Inbox | None) -> list[Stream]:
        """Sends the requests under ids of their own; the clock of each one's Stream starts here.

        What stands in a request's `rid` is the caller's name for it. Requests of one call may share it, and it may come
        again once they have ended, which an id never does. ValueError for a name that is out, EngineError at the end.
        """
        with self._lock:
            for request in requests:
                if self._names[request.rid]:
                    raise ValueError(f"rid is {request.rid!r}, and a request of that name is pending; choose another")
            return [self._hand_over(request, inbox) for request in requests]

    def _hand_over(self, request: GenerateRequest, inbox: Inbox | None) -> Stream:
        self.raise_failure()
        name, rid = request.rid, f"r{next(self._rids)}"
        stream = Stream(rid, time.perf_counter(), inbox, request.logprobs, name)
        request = msgspec.structs.replace(request, rid=rid)
        self._out[rid] = _Out(stream, request if self._keeps else None)
        if name:
            self._names[name] += 1
        self._send(request)
        return stream

    def ids_of(self, name: str) -> list[str]:
        """The ids that the stage knows of the requests with this caller's name; where there are none, of the one with
        this rid."""
        with self._lock:
            named = [id for id, out in self._out.items() if out.stream.name == name]
            return named or [id for id, out in self._out.items() if out.stream.rid == name]

    def id_of(self, stream: Stream) -> str | None:
        """The one that the stage knows; None when it is not out."""
        with self._lock:
            return next((id for id, out in self._out.items() if out.stream is stream), None)

    def take(self, batch: TextBatch, trace: Trace | NoTrace) -> None:
        now = time.perf_counter()
        for chunk in batch.chunks:
            with self._lock:
                out = self._out.get(chunk.rid)
                if out and chunk.finish:
                    self._forget(chunk.rid)
                    trace.request("finished", chunk.rid)
            if out:
                out.stream.add(now, chunk)

    def _forget(self, id: str) -> None:
        name = self._out.pop(id).stream.name
        if name:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    # ------------------------------------------------------------------ replicas that fail on their own

    def dispatched(self, replica: int, ids: list[str]) -> None:
        """These went to this replica. Some of them may have ended."""
        with self._lock:
            for id in ids:
                if id in self._out:
                    self._out[id].replica = replica

    def lose(self, replica: int, error: EngineError) -> None:
        """A replica is no more: what it has given nothing of is sent once more, the other callers are told."""
        failed = []
        with self._lock:
            for id in [id for id, out in self._out.items() if out.replica == replica]:
                stream, request = self._out[id].stream, self._out[id].request
                if stream.started_to_stream:
                    self._forget(id)
                    failed.append(stream)
                    continue
                del self._out[id]
                request = msgspec.structs.replace(request, rid=f"{stream.rid}.{next(self._resent)}")
                self._out[request.rid] = _Out(stream, request)
                self._send(request)
        for stream in failed:
            stream.fail(EngineError(str(error)))

    # ------------------------------------------------------------------ the end

    def fail(self, error: EngineError) -> None:
        """Every waiting caller is told, and every later one. The first error stays: it is the cause of the others."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            streams = [out.stream for out in self._out.values()]
            self._out.clear()
            self._names.clear()
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
        return len(self._out)
