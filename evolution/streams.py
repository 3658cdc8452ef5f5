"""The caller's side of one request: chunks as they arrive, their times, and the result in SGLang's shape."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from common.messages import FinishReason, LogprobParams, TextChunk, TokenLogprobs


class Inbox(Protocol):
    """Where streams put (stream, time, chunk or the exception that ended it): a queue, or what hands it on."""

    def put(self, item: tuple[Stream, float, TextChunk | Exception]) -> None: ...


class Stream:
    """Chunks of one request. Times are seconds of `time.perf_counter` in the main process.

    started    when the request was handed over
    arrivals   (time, new tokens) of each chunk that brought tokens
    done       set once the request has finished or failed

    Chunks wait in `inbox`, which several streams may share to be read in the order of arrival (`merge`). An inbox that
    is no queue has a reader of its own, which gives each chunk to `take`. `name`: the caller's, in place of the rid.
    """

    def __init__(
        self,
        rid: str,
        started: float,
        inbox: Inbox | None = None,
        logprobs: LogprobParams | None = None,
        name: str = "",
    ) -> None:
        self.rid = rid
        self.name = name
        self.started = started
        self.arrivals: list[tuple[float, int]] = []
        self.done = threading.Event()
        self.started_to_stream = False  # a chunk has come
        self._inbox = inbox or queue.SimpleQueue()
        self._text = ""
        self._ids: list[int] = []
        self._top_logprobs = logprobs.top if logprobs else 0
        kinds = () if logprobs is None else ("token", "top")[: 1 + bool(logprobs.top)]
        names = [f"{side}_{kind}_logprobs" for kind in kinds for side in ("input", "output")]
        self._logprobs: dict[str, list] = {name: [] for name in names}
        self._last: dict[str, Any] | Exception | None = None  # what ended it, once it was read

    # ------------------------------------------------------------------ the receiver thread

    def add(self, now: float, chunk: TextChunk) -> None:
        self.started_to_stream = True
        if chunk.new_ids:
            self.arrivals.append((now, len(chunk.new_ids)))
        self._inbox.put((self, now, chunk))
        if chunk.finish:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self._inbox.put((self, 0.0, error))
        self.done.set()

    # ------------------------------------------------------------------ the caller

    def results(self) -> Iterator[dict[str, Any]]:
        """One cumulative result per chunk, until the request finishes. Raises EngineError when the engine fails."""
        for _, result in Stream.merge([self]):
            yield result

    def result(self) -> dict[str, Any]:
        """The whole result; blocks until the request finishes. May be asked for again."""
        for _ in self.results():
            pass
        if isinstance(self._last, Exception):
            raise self._last
        return self._last

    @staticmethod
    def merge(streams: list[Stream]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(index, result) of streams that share an inbox, in the order in which chunks arrived."""
        index_of = {id(stream): index for index, stream in enumerate(streams)}
        while any(stream._last is None for stream in streams):
            stream, now, chunk = streams[0]._inbox.get()
            if isinstance(chunk, Exception):
                stream._last = chunk
                raise chunk
            yield index_of[id(stream)], stream.take(now, chunk)

    def take(self, now: float, chunk: TextChunk) -> dict[str, Any]:
        """The result with this chunk in it. Chunks are taken in the order of their arrival, on one thread."""
        self._text += chunk.text
        self._ids += chunk.new_ids
        self._add_logprobs("input", chunk.input_logprobs)
        self._add_logprobs("output", chunk.output_logprobs)
        result = {
            "text": self._text,
            "output_ids": list(self._ids),
            "meta_info": {
                "id": self.name or self.rid,
                "finish_reason": _finish_reason(chunk.finish, len(self._ids)),
                "prompt_tokens": chunk.prompt_tokens,
                "completion_tokens": len(self._ids),
                "cached_tokens": chunk.cached_tokens,
                "e2e_latency": now - self.started,
                **{name: list(values) for name, values in self._logprobs.items()},
            },
        }
        if chunk.finish:
            self._last = result
        return result

    def _add_logprobs(self, side: str, packed: TokenLogprobs | None) -> None:
        if packed is None:
            return
        tokens = _triples(packed.values, packed.ids)
        self._logprobs[f"{side}_token_logprobs"] += tokens
        if self._top_logprobs:
            triples, k = _triples(packed.top_values, packed.top_ids), self._top_logprobs
            lists = [triples[i * k : (i + 1) * k] for i in range(len(tokens))]
            self._logprobs[f"{side}_top_logprobs"] += [
                None if token[0] is None else top for token, top in zip(tokens, lists, strict=True)
            ]


def _triples(values: bytes, ids: bytes) -> list[tuple[float | None, int, None]]:
    """SGLang's (log-probability, token id, text), without text; the log-probability is None where there is none."""
    pairs = zip(memoryview(values).cast("d"), memoryview(ids).cast("i"), strict=True)
    return [(None if math.isnan(value) else value, token, None) for value, token in pairs]


def _finish_reason(finish: FinishReason | None, length: int) -> dict[str, Any] | None:
    """SGLang's shape since 0.3.2."""
    if finish is None:
        return None
    if finish.type == "length":
        return {"type": "length", "length": length}
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {"type": finish.type, "message": finish.message}
