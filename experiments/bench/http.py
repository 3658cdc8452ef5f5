"""`bench http`: what the HTTP front adds to a request's first token, and what it takes of the throughput.

A repeat starts an offline engine and a server of the same settings, which comes first every second time. Both live at
once and take turns; the other one blocks meanwhile, with `level` constants. So two samples that are compared lie a
second apart.

* TTFT at low load: one request at a time, the same prompt to the one and to the other, SINGLES for each. Offline the
  clock runs from tokenizing to the first result; over HTTP from before the request's bytes are sent, on a connection
  that is open, until the first line with text is read. The sample of a repeat is the difference of the medians.
* Throughput: STREAMS requests at once, each read as it streams, until the last has ended; the output tokens over that
  time, of each arm the median of BATCHES. The client is one thread that polls its sockets and looks for the end of
  each stream, so as to take little of the two cores that it shares with what it measures.

Prompts are random token ids, and nothing is cached. On the simulated accelerator the forward takes no core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console

from common.args import EngineArgs
from evolution.checks import resolve_args
from evolution.engine import Engine, EngineError
from evolution.environment import environment
from evolution.stages import STAGES
from experiments.bench.engines import finish, start
from experiments.bench.option_lists import check_repeats
from experiments.bench.rounds import median, spread, spread_verdict
from experiments.bench.verdicts import combined
from experiments.intervals import pairwise_ratio, remark, shown, verdict

SINGLES, STREAMS, BATCHES = 40, 64, 3
INPUT_LEN, OUTPUT_LEN = 128, 512
AT_MOST_MS, AT_LEAST = 1.5, 0.95
END = b"data: [DONE]\n\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", choices=tuple(STAGES), default="peer", help="default: peer")
    parser.add_argument("--tp-size", type=int, default=1, help="default: 1")
    parser.add_argument("--device", choices=("sim", "cpu"), default="sim", help="default: sim")
    parser.add_argument("--sim-profile", help="as for `run`")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of engine and server (default: 7)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    check_repeats(options.repeats)
    settings = {name: getattr(options, name) for name in ("stage", "tp_size", "device", "sim_profile")}
    args, config = resolve_args(EngineArgs(**settings))
    print(f"{options.repeats} pairs of engine and server, the two of a pair at once: about {options.repeats * 30} s")
    repeats = []
    for repeat in range(options.repeats):
        rng = np.random.default_rng(repeat)

        def prompts(count: int, rng: np.random.Generator = rng) -> list[list[int]]:
            return rng.integers(0, config.vocab_size, (count, INPUT_LEN)).tolist()

        with contextlib.ExitStack() as stack:
            arms = {}
            for arm in ("offline", "http") if repeat % 2 else ("http", "offline"):
                arms[arm] = stack.enter_context(
                    start(EngineArgs(**settings)) if arm == "offline" else serving(settings)
                )
            repeats.append(measure(arms["offline"], arms["http"], prompts))
    added = spread([(median(each["ttft"]["http"]) - median(each["ttft"]["offline"])) * 1e3 for each in repeats])
    ratio = pairwise_ratio(
        [median(each["throughput"]["http"]) for each in repeats],
        [median(each["throughput"]["offline"]) for each in repeats],
    )
    verdicts = [spread_verdict(added, AT_MOST_MS), verdict(ratio, at_least=AT_LEAST)]
    return {
        "bench": "http",
        "unit": "ttft: s; throughput: output tokens/s of a batch",
        "samples": repeats,
        "added_ttft_ms": added,
        "throughput_ratio": ratio,
        "verdicts": {"added_ttft_ms": verdicts[0], "throughput_ratio": verdicts[1]},
        "verdict": combined(verdicts),
        "environment": environment(args),
    }


def measure(engine: Engine, port: int, prompts) -> dict[str, dict[str, list[float]]]:
    """Samples of both arms: `ttft` and `throughput`. The first of each warms up, and is left out."""
    found: dict[str, dict[str, list[float]]] = {kind: {"offline": [], "http": []} for kind in ("ttft", "throughput")}
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for index, ids in enumerate(prompts(SINGLES + 1)):
            both = {
                "offline": lambda ids=ids: offline_ttft(engine, ids),
                "http": lambda ids=ids: http_ttft(connection, ids),
            }
            for arm in sorted(both, reverse=index % 2 == 0):
                found["ttft"][arm].append(both[arm]())
    for index in range(BATCHES + 1):
        batch = prompts(STREAMS)
        for arm in ("offline", "http") if index % 2 else ("http", "offline"):
            seconds = offline_seconds(engine, batch) if arm == "offline" else http_seconds(port, batch)
            found["throughput"][arm].append(STREAMS * OUTPUT_LEN / seconds)
    return {kind: {arm: samples[1:] for arm, samples in arms.items()} for kind, arms in found.items()}


@contextlib.contextmanager
def serving(settings: dict[str, Any]) -> Iterator[int]:
    """A server's port."""
    flags = [part for name, value in settings.items() if value is not None for part in (flag(name), str(value))]
    command = [sys.executable, "-m", "evolution", "serve", "--port", "0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        if not line.startswith("serving on "):
            raise EngineError("the server did not start; it says why above")
        yield int(line.split()[2].rpartition(":")[2])
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# ---------------------------------------------------------------------------- one request at a time


def sampling(output_len: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": output_len, "ignore_eos": True}


def offline_ttft(engine: Engine, ids: list[int]) -> float:
    began = time.perf_counter()
    results = engine.generate(input_ids=ids, sampling_params=sampling(4), stream=True)
    next(results)
    took = time.perf_counter() - began
    for _ in results:
        pass
    return took


def http_ttft(connection: socket.socket, ids: list[int]) -> float:
    began = time.perf_counter()
    connection.sendall(http_request(ids, 4))
    received = b""
    took = None
    while not received.endswith(b"0\r\n\r\n"):  # the last of the chunks
        received += connection.recv(65536)
        if took is None and b"data: " in received:
            took = time.perf_counter() - began
    return took


def http_request(ids: list[int], output_len: int) -> bytes:
    body = json.dumps({"input_ids": ids, "sampling_params": sampling(output_len), "stream": True}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


# ---------------------------------------------------------------------------- many at once


def offline_seconds(engine: Engine, prompts: list[list[int]]) -> float:
    began = time.perf_counter()
    finish(engine, engine.make_requests(None, sampling(OUTPUT_LEN), prompts, stream=True)[1])
    return time.perf_counter() - began


def http_seconds(port: int, prompts: list[list[int]]) -> float:
    requests = [http_request(ids, OUTPUT_LEN) for ids in prompts]
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in requests]
        selector = stack.enter_context(selectors.DefaultSelector())
        began = time.perf_counter()
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ)
        tails = dict.fromkeys(connections, b"")
        while tails:
            for key, _ in selector.select():
                received = key.fileobj.recv(1 << 20)
                tails[key.fileobj] = (tails[key.fileobj] + received)[-64:]
                if not received:
                    raise EngineError("the server closed a stream before its end")
                if END in tails[key.fileobj]:
                    selector.unregister(key.fileobj)
                    del tails[key.fileobj]
        return time.perf_counter() - began


def show(result: dict[str, Any]) -> None:
    console = Console()
    added, ratio, verdicts = result["added_ttft_ms"], result["throughput_ratio"], result["verdicts"]
    added = {**added, "pairs": added["values"]}
    offline = median([value for each in result["samples"] for value in each["ttft"]["offline"]]) * 1e3
    console.print(
        f"TTFT over HTTP, beyond the offline engine's {offline:.2f} ms: {shown(added)} ms (at most {AT_MOST_MS:g}:"
        f" {verdicts['added_ttft_ms']})",
        soft_wrap=True,
    )
    rate = median([value for each in result["samples"] for value in each["throughput"]["offline"]])
    console.print(
        f"throughput of {STREAMS} streams over the offline engine's, {rate:.0f} tokens/s: {shown(ratio)} (at least"
        f" {AT_LEAST:g}: {verdicts['throughput_ratio']}) {remark(ratio)}",
        soft_wrap=True,
    )
