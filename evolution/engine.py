"""Engine: any stage, offline, in the shape of SGLang's. It is the main process's part: tokenize, send, collect.

```
 caller ──generate()──> tokenize ──requests──> [ stage ] ──> detokenizer ──texts──> receiver thread ──> caller
                                                   └───────────control────────────> receiver thread
```
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq

from common.args import EngineArgs
from common.channels import Sender
from common.messages import (
    AbortRequest,
    ControlOut,
    ControlReply,
    Dispatched,
    FlushRequest,
    GenerateRequest,
    LoadReport,
    ReplicaLost,
    Request,
    StatsRequest,
    StopRequest,
    TextBatch,
)
from common.processes import Board, Failure, ProcessFailed, ReadyReport, Supervisor, refuse_while_spawning
from common.run_folder import create_run_folder, remove_run_folder
from common.tokenizer import Tokenizer
from common.tracing import CallerTraces, NoTrace, Trace
from evolution.checks import resolve_args
from evolution.control import ControlCalls
from evolution.health import Health
from evolution.pending import EngineError, PendingRequests
from evolution.receiver import AnswerReceiver
from evolution.replicas import Replicas
from evolution.requests import RequestMaker
from evolution.stages import make_endpoints
from evolution.start import StartFailed, start_processes
from evolution.streams import Inbox, Stream
from evolution.watchdog import Watchdog, hang_limit

STOP_TIMEOUT = 10.0


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
        self.processes: list[ReadyReport] = []
        self.load: dict[int, LoadReport] = {}
        self._lock = threading.RLock()
        self._board = Board()
        degrades = self.args.on_replica_failure == "degrade" and self.args.dp_size > 1
        self._pending = PendingRequests(self._lock, self._send, keeps=degrades)
        self._last_batches = 0
        self._drained = threading.Event()
        self._calls = ControlCalls(self.args.dp_size, self._lock, self._send, self._pending.raise_failure)
        self._replicas = Replicas(self.args, self._board, self._pending, self._calls, self.load)
        self._watchdog = Watchdog(self._board, hang_limit(self.args), self._is_waited_for, self._hangs)
        self._owner = os.getpid()
        self._receiver: AnswerReceiver | None = None
        self._closing = False  # shutdown has begun
        self._closed = False  # nothing that ends from now on is a failure
        self.start_times["checked"] = time.monotonic()
        self._callers = CallerTraces(self.args.trace_dir)
        self._start()
        atexit.register(self.shutdown)

    def _start(self) -> None:
        folder = create_run_folder()
        self._supervisor = Supervisor(self._process_failed, self._board)
        self._zmq = zmq.Context()
        try:
            endpoints = make_endpoints(self.args, str(folder))
            self._receiver = AnswerReceiver(self._zmq, endpoints, self.args.trace_dir)
            self.processes = start_processes(self.args, endpoints, self._supervisor, self.start_times)
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
        totals = [r.info["max_total_tokens"] for p in self.processes for r in p.walk() if "max_total_tokens" in r.info]
        self.make_requests.pool_tokens = min(totals, default=self.args.max_total_tokens)
        self._receiver.start(self._take_texts, self._take_control, self._receiver_failed)
        self._watchdog.start()
        self.start_times["ready"] = time.monotonic()

    def _abandon_start(self) -> None:
        self._closing = self._closed = True
        self._supervisor.kill()
        if self._receiver:
            self._receiver.stop()
        self._zmq.destroy(linger=0)
        self._callers.close()
        self._board.close()

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
        return self._pending.hand_over(requests, inbox)

    @property
    def outstanding(self) -> int:
        """Requests handed over and not finished."""
        return len(self._pending)

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

    def _stream_results(self, requests: list[GenerateRequest], single: bool) -> Iterator[dict]:
        """Requests are handed over when the first result is asked for, and aborted when the caller stops asking."""
        streams = self.submit(requests, queue.SimpleQueue())
        try:
            for index, result in Stream.merge(streams):
                yield result if single else {"index": index, **result}
        finally:
            self.abandon(streams)

    def abandon(self, streams: list[Stream]) -> None:
        """Abort what is still unfinished. Nobody waits for the replies: this may be a garbage collection, on whatever
        thread, or an interrupt."""
        with self._lock:
            for stream in streams:
                if id := self._pending.id_of(stream):
                    self._send(AbortRequest(self._calls.next_id(), id))

    # ------------------------------------------------------------------ control

    def abort(self, rid: str) -> bool:
        """Abort a request that waits or runs, all of that name; whether some replica had one. Each still ends in one
        finish (abort)."""
        if not isinstance(rid, str):
            raise ValueError(f"rid must be a string, as in meta_info['id'], not {rid!r}")
        replies = [reply for id in self._pending.ids_of(rid) for reply in self._calls.ask(AbortRequest, id)]
        return any(reply.ok for reply in replies)

    def flush_cache(self) -> bool:
        """Empty every replica's radix cache; False when a replica was busy and refused."""
        return not self.flush_replicas()

    def flush_replicas(self) -> dict[int, str]:
        """Empty every replica's radix cache; the replicas that refused, and why."""
        return {reply.replica: reply.detail["reason"] for reply in self._calls.ask(FlushRequest) if not reply.ok}

    def stats(self) -> list[dict[str, Any]]:
        """The scheduler's figures, one dict per replica."""
        replies = self._calls.ask(StatsRequest)
        return [reply.detail for reply in sorted(replies, key=lambda r: r.replica)]

    @property
    def failure(self) -> str:
        """The first cause of the engine's end, where a process raised with its traceback; "" while it serves."""
        return self._pending.cause

    def health(self) -> Health:
        """Asks no process: it is what the main process knows at this moment."""
        cause = (self._pending.cause or self._replicas.cause).partition("\n")[0]  # without a traceback
        return Health(not self._pending.failed, cause, self._replicas.alive, self.args.dp_size)

    # ------------------------------------------------------------------ on the receiver's thread

    def _take_texts(self, batch: TextBatch, trace: Trace | NoTrace) -> None:
        self._pending.take(batch, trace)
        self._last_batches += batch.last
        if self._last_batches == self.args.dp_size:
            self._drained.set()

    def _take_control(self, message: ControlOut) -> None:
        if isinstance(message, LoadReport):
            self.load[message.replica] = message
        elif isinstance(message, ControlReply):
            self._calls.take(message)
        elif isinstance(message, Dispatched):
            self._pending.dispatched(message.replica, message.rids)
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
        return bool(self._pending) or self._calls.waiting

    def _hangs(self, failure: Failure, replica: int | None) -> None:
        """On the watchdog's thread."""
        if self._replicas.can_lose(replica):
            self._replicas.kill_hanging(replica, failure)
        else:
            self._process_failed(failure)

    def _fail_all(self, error: EngineError) -> None:
        self._pending.fail(error)
        self._calls.wake()

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
            orderly = not kill and not self._pending.failed and not self._pending
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
            atexit.unregister(self.shutdown)

    def _leave_in_order(self) -> None:
        self._supervisor.expect_exit()
        try:
            self._calls.ask(StopRequest)
        except (EngineError, TimeoutError):
            return
        self._drained.wait(STOP_TIMEOUT)
        self._closed = True
        self._supervisor.stop()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown(kill=exception[0] is not None)
