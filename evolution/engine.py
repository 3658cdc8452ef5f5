"""Engine: any stage, offline, in the shape of SGLang's. It is the main process's part: tokenize, send, collect.

```
 caller ──generate()──> tokenize ──requests──> [ stage ] ──> detokenizer ──texts──> receiver thread ──> caller
                                                   └───────────control────────────> receiver thread
```
"""

from __future__ import annotations

import atexit
import dataclasses
import queue
import time
from collections.abc import Iterator
from typing import Any

from common.args import EngineArgs
from common.messages import (
    AbortRequest,
    FlushRequest,
    GenerateRequest,
    LoadReport,
    StatsRequest,
)
from common.processes import ReadyReport, refuse_while_spawning
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.health import Health
from evolution.pending import EngineError
from evolution.requests import RequestMaker
from evolution.running_stage import RunningStage
from evolution.streams import Inbox, Stream

__all__ = ["Engine", "EngineError"]


class Engine:
    """`Engine(model_path="smollm2", stage="peer", tp_size=2, ...)`: keyword arguments are the fields of EngineArgs.

    Raises ValueError of one line for bad settings, before any process starts; EngineError when a process of the
    engine ends unasked or hangs (then every pending and later call raises it too, unless other replicas go on: see
    `on_replica_failure`). Use it as a context manager, or call `shutdown()`. It may be used from any thread, and
    several engines may live side by side.
    """

    def __init__(self, **settings: Any) -> None:
        self.start_times = {"called": time.monotonic()}  # when the steps of the start were done, as in ReadyReport
        refuse_while_spawning()
        known = {f.name for f in dataclasses.fields(EngineArgs)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ValueError(f"Engine has no setting {unknown[0]!r}: it takes {', '.join(sorted(known))}")
        self.args, self.model_config = resolve_args(EngineArgs(**settings))
        self.tokenizer = Tokenizer(self.args.model_path)
        self.make_requests = RequestMaker(self.args, self.model_config, self.tokenizer)
        self.start_times["checked"] = time.monotonic()
        self._stage = RunningStage(self.args, self.start_times)
        atexit.register(self.shutdown)
        totals = [r.info["max_total_tokens"] for p in self.processes for r in p.walk() if "max_total_tokens" in r.info]
        self.make_requests.pool_tokens = min(totals, default=self.args.max_total_tokens)

    @property
    def processes(self) -> list[ReadyReport]:
        """Those that main started, each with what it started itself."""
        return self._stage.processes

    @property
    def load(self) -> dict[int, LoadReport]:
        """The newest report of each replica."""
        return self._stage.load

    # ------------------------------------------------------------------ generate

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict | list[dict] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: bytes | list[bytes | None] | None = None,
        stream: bool = False,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] = -1,
        top_logprobs_num: int | list[int] = 0,
        rid: str | list[str] | None = None,
    ) -> dict | list[dict] | Iterator[dict]:
        """Generate for one prompt (returns a dict) or a list (returns a list of dicts, in order). With `n` above 1 in
        the sampling parameters it is a flat list, for a single prompt too: each prompt's n results together.

        Each result is `{text, output_ids, meta_info}`; meta_info holds id, finish_reason, prompt_tokens,
        completion_tokens, cached_tokens and e2e_latency (seconds). With `stream` an iterator of such dicts: `text` is
        cumulative, and where a list would be returned each carries its `index` in it.

        With return_logprob meta_info also holds output_token_logprobs and input_token_logprobs, lists of
        (log-probability, token id, None): log_softmax of the raw logits, before penalties and temperature. The input's
        are those of the prompt tokens from index logprob_start_len on; the prompt's first token has None in place of a
        number. -1, the default, is none of the prompt: an empty list. With top_logprobs_num k above 0 there are
        output_top_logprobs and input_top_logprobs too: per token the list of the k most likely ones, the most likely
        first (None for the prompt's first token).

        `rid` is the caller's own name for the request, one for each prompt; ValueError while one of that name is out.
        """
        single, requests = self.make_requests(
            prompt,
            sampling_params,
            input_ids,
            image_data,
            stream,
            return_logprob,
            logprob_start_len,
            top_logprobs_num,
            rid,
        )
        if stream:
            return self._stream_results(requests, single)
        streams = self.submit(requests)
        try:
            results = [s.result() for s in streams]
        except BaseException:
            self.abandon(streams)
            raise
        return results[0] if single else results

    def submit(self, requests: list[GenerateRequest], inbox: Inbox | None = None) -> list[Stream]:
        """Hand requests over; returns a Stream for each, whose clock starts here. They may share an `inbox`.

        A `rid` that a request has is the caller's name for it: ValueError while another of that name is out.
        """
        return self._stage.pending.hand_over(requests, inbox)

    @property
    def outstanding(self) -> int:
        """Requests handed over and not finished."""
        return len(self._stage.pending)

    def _stream_results(self, requests: list[GenerateRequest], single: bool) -> Iterator[dict]:
        """Requests are handed over when the first result is asked for, and aborted when the caller stops asking."""
        streams = self.submit(requests, queue.SimpleQueue())
        try:
            for index, result in Stream.merge(streams):
                yield result if single else {"index": index, **result}
        finally:
            self.abandon(streams)

    # ------------------------------------------------------------------ control

    def abort(self, rid: str) -> bool:
        """Abort a request that waits or runs, all of that name; whether some replica had one. Each still ends in one
        finish (abort)."""
        if not isinstance(rid, str):
            raise ValueError(f"rid must be a string, as in meta_info['id'], not {rid!r}")
        self._stage.pending.raise_failure()
        replies = [reply for id in self._stage.pending.ids_of(rid) for reply in self._stage.calls.ask(AbortRequest, id)]
        return any(reply.ok for reply in replies)

    def flush_cache(self) -> bool:
        """Empty every replica's radix cache; False when a replica was busy and refused."""
        return not self.flush_replicas()

    def flush_replicas(self) -> dict[int, str]:
        """Empty every replica's radix cache; the replicas that refused, and why."""
        return {reply.replica: reply.detail["reason"] for reply in self._stage.calls.ask(FlushRequest) if not reply.ok}

    def stats(self) -> list[dict[str, Any]]:
        """The scheduler's figures, one dict per replica."""
        replies = self._stage.calls.ask(StatsRequest)
        return [reply.detail for reply in sorted(replies, key=lambda r: r.replica)]

    @property
    def failure(self) -> str:
        """The first cause of the engine's end, where a process raised with its traceback; "" while it serves."""
        return self._stage.failure

    def health(self) -> Health:
        """Asks no process: it is what the main process knows at this moment."""
        return self._stage.health()

    # ------------------------------------------------------------------ the end

    def abandon(self, streams: list[Stream]) -> None:
        """Abort what is still unfinished. Nobody waits for the replies: this may be a garbage collection, on whatever
        thread, or an interrupt."""
        self._stage.abandon(streams)

    def shutdown(self, kill: bool = False) -> None:
        """Stop all processes: asked to leave together, or killed at once with `kill` or while requests are pending.

        Pending calls raise EngineError. Safe to call twice and from several threads.
        """
        self._stage.shutdown(kill)
        atexit.unregister(self.shutdown)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown(kill=exception[0] is not None)
