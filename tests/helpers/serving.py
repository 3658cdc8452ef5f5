"""A real server in a process of its own, and an engine that is only a script, for tests of the HTTP side alone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from common.args import EngineArgs
from common.messages import FinishReason, GenerateRequest, TextChunk
from common.models.config import ModelConfig
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.health import Health
from evolution.pending import EngineError
from evolution.requests import RequestMaker
from evolution.streams import Inbox, Stream

CHAT_TEMPLATE = Path(__file__).parents[1] / "data" / "chat_template.jinja"


class ServerProcess:
    """`python -m evolution serve` on a free port, with the options given; `tiny` unless they say otherwise."""

    def __init__(self, *options: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "evolution", "serve", "--port", "0", "--model-path", "tiny", *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            # In a session of its own, and not deaf to ctrl-C, as it is when the tests run in the background.
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line.startswith("serving on http://"), self.process.stderr.read()
        self.url = self.ready_line.split()[2].rstrip(":")
        self.port = int(self.url.rpartition(":")[2])
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.client.post(path, json=fields)

    def stats(self) -> dict[str, int]:
        """The figures of all replicas, added up."""
        states = self.client.get("/get_server_info").json()["internal_states"]
        return {name: sum(state[name] for state in states) for name in states[0]}

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """The exit status, and what was written to stderr."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.wait()

    def wait(self, timeout: float = 15) -> tuple[int, str]:
        try:
            _, error = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, error


@contextlib.contextmanager
def serving(*options: str, **how: Any) -> Iterator[ServerProcess]:
    """Asserts that the server ends well."""
    server = ServerProcess(*options, **how)
    try:
        yield server
    finally:
        status, error = server.stop()
    assert (status, error) == (0, "")


def events(text: str) -> list[dict]:
    """The objects of an event stream, whose form is checked: `data: ` lines, empty lines between them, [DONE]."""
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""], text[-200:]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@functools.cache
def _tiny() -> tuple[EngineArgs, ModelConfig, Tokenizer]:
    settings = EngineArgs(model_path="tiny", max_total_tokens=512, context_length=256)
    args, config = resolve_args(settings, measure_memory=False)
    return args, config, Tokenizer(args.model_path)


class ScriptedEngine:
    """Answers every request with the same texts, one chunk each, on a thread of its own; or not at all (`silent`)."""

    def __init__(
        self, texts: tuple[str, ...] = ("ab", "c"), silent: bool = False, fails_after: int | None = None
    ) -> None:
        self.args, self.config, self.tokenizer = _tiny()
        self.make_requests = RequestMaker(self.args, self.config, self.tokenizer)
        self.load: dict = {}
        self.failure: str | None = None
        self.submitted: list[GenerateRequest] = []
        self.abandoned: list[Stream] = []
        self.outstanding = 0
        self._texts, self._silent, self._fails_after = texts, silent, fails_after

    def submit(self, requests: list[GenerateRequest], inbox: Inbox) -> list[Stream]:
        if self.failure:
            raise EngineError(self.failure)
        streams = [Stream(f"r{i}", 0.0, inbox, request.logprobs, request.rid) for i, request in enumerate(requests)]
        self.submitted += requests
        self.outstanding += len(requests)
        if not self._silent:
            threading.Thread(target=self._answer, args=(streams,)).start()
        return streams

    def _answer(self, streams: list[Stream]) -> None:
        for count, text in enumerate(self._texts):
            last = count == len(self._texts) - 1
            if count and count == self._fails_after:
                _until_read(streams)
            for stream in streams:
                if count == self._fails_after:
                    stream.fail(EngineError("evo-peer TP1 (pid 7) was killed by SIGKILL\nTraceback: secret"))
                else:
                    stream.add(1.0, TextChunk(stream.rid, text, [5, 6], FinishReason("length") if last else None, 3, 1))
        self.outstanding -= len(streams)

    def health(self) -> Health:
        return Health(self.failure is None, self.failure or "", [0], 1)

    def abandon(self, streams: list[Stream]) -> None:
        self.abandoned += streams

    def abort(self, rid: str) -> bool:
        return any(request.rid == rid for request in self.submitted)

    def flush_replicas(self) -> dict[int, str]:
        return {1: "2 requests run and 0 wait; flush when idle"}

    def stats(self) -> list[dict[str, int]]:
        return [{"running": 0}]


def _until_read(streams: list[Stream]) -> None:
    """Until what came so far has been taken from every stream; AssertionError after 10 s."""
    deadline = time.monotonic() + 10
    while not all(stream._ids for stream in streams):
        assert time.monotonic() < deadline, "nobody reads the streams"
        time.sleep(0.001)
