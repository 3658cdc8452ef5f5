"""The caller's side of one request: chunks as they arrive, their times, and the result in SGLang's shape."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from common.messages import FinishReason, TextChunk


class Stream:
    """Chunks of one request. Times are seconds of `time.perf_counter` in the main process.

    started    when the request was handed over
    arrivals   (time, new tokens) of each chunk that brought tokens
    """

    def __init__(self, rid: str, started: float) -> None:
        self.rid = rid
        self.started = started
        self.arrivals: list[tuple[float, int]] = []
        self.done = threading.Event()
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._text = ""
        self._ids: list[int] = []
        self._finished_at = started

    # ------------------------------------------------------------------ the receiver thread

    def add(self, now: float, chunk: TextChunk) -> None:
        if chunk.new_ids:
            self.arrivals.append((now, len(chunk.new_ids)))
        self._finished_at = now
        self._queue.put(chunk)
        if chunk.finish:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self._queue.put(error)
        self.done.set()

    # ------------------------------------------------------------------ the caller

    def results(self) -> Iterator[dict[str, Any]]:
        """One cumulative result per chunk, until the request finishes. Raises EngineError when the engine fails."""
        finish = None
        while finish is None:
            chunk = self._queue.get()
            if isinstance(chunk, Exception):
                raise chunk
            self._text += chunk.text
            self._ids += chunk.new_ids
            finish = chunk.finish
            yield self._result(chunk)

    def result(self) -> dict[str, Any]:
        """The whole result; blocks until the request finishes."""
        last: dict[str, Any] = {}
        for last in self.results():  # noqa: B007
            pass
        return last

    @staticmethod
    def merge(streams: list[Stream]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(index, result) of several streams, in the order in which chunks arrived."""
        arrived: queue.SimpleQueue = queue.SimpleQueue()

        def forward(index: int, stream: Stream) -> None:
            try:
                for result in stream.results():
                    arrived.put((index, result))
            except Exception as error:
                arrived.put((index, error))
            arrived.put((index, None))

        for index, stream in enumerate(streams):
            threading.Thread(target=forward, args=(index, stream), daemon=True).start()
        left = len(streams)
        while left:
            index, result = arrived.get()
            if result is None:
                left -= 1
            elif isinstance(result, Exception):
                raise result
            else:
                yield index, result

    def _result(self, chunk: TextChunk) -> dict[str, Any]:
        return {
            "text": self._text,
            "output_ids": list(self._ids),
            "meta_info": {
                "id": self.rid,
                "finish_reason": _finish_reason(chunk.finish, len(self._ids)),
                "prompt_tokens": chunk.prompt_tokens,
                "completion_tokens": len(self._ids),
                "cached_tokens": chunk.cached_tokens,
                "e2e_latency": self._finished_at - self.started,
            },
        }


def _finish_reason(finish: FinishReason | None, length: int) -> dict[str, Any] | None:
    """SGLang's shape since 0.3.2."""
    if finish is None:
        return None
    if finish.type == "length":
        return {"type": "length", "length": length}
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {"type": finish.type, "message": finish.message}
