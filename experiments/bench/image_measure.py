"""What `bench image` measures: requests with images through a real engine, and what its two hops send."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np

from common.args import EngineArgs
from common.os_accounts import process_cpu_ns
from common.run_folder import run_folder
from evolution.engine import Engine
from experiments.bench.distribute_turns import RunTrace
from experiments.bench.engines import finish, pids_of, start
from experiments.bench.mechanism_payloads import IMAGES
from experiments.bench.mechanism_ranks import Block, Phase
from experiments.bench.mechanism_run import measure
from experiments.bench.mechanism_stages import (
    GlooBuffer,
    GlooList,
    GlooMsgpack,
    RpycReference,
    RpycValue,
    ZmqIpc,
    ZmqTcp,
)
from report.trace import load

TP = 2
CONSTANTS = ("era", "level")
# (the channel from main, its codec, the way to the ranks)
HOPS = {
    ("rpyc", "era"): (ZmqTcp, "pickle", RpycReference),
    ("rpyc", "level"): (ZmqIpc, "msgpack", RpycValue),
    ("broadcast", "era"): (ZmqTcp, "pickle", GlooList),
    ("broadcast", "level"): (ZmqIpc, "msgpack", GlooMsgpack),
    ("peer", "era"): (ZmqIpc, "pickle", GlooBuffer),
    ("peer", "level"): (ZmqIpc, "msgpack", GlooMsgpack),
}
PARTS = ("whole", "distribute", "cpu")
MEASURED = 5  # requests of a size in a round, after one that is not; fewer of the large ones
FEWER = {"1 MiB": 3, "4 MiB": 3, "16 MiB": 2}


def measure_engine(stage: str, constants: str, sizes: list[str], repeat: int) -> dict[str, dict[str, list[float]]]:
    """For each size the seconds of each request: PARTS."""
    rng = np.random.default_rng(repeat)
    cpu: dict[int, float] = {}
    numbers: dict[str, list[int]] = {size: [] for size in sizes}
    with run_folder() as folder:
        args = EngineArgs(
            stage=stage, tp_size=TP, scheduling="replicated", constants=constants, device="sim", trace_dir=str(folder)
        )
        with start(args) as engine:
            for size in sizes:
                send_one(engine, size, rng)  # the first of a size meets memory that nobody has touched yet
                for _ in range(FEWER.get(size, MEASURED)):
                    number, seconds = send_one(engine, size, rng)
                    numbers[size].append(number)
                    cpu[number] = seconds
        walls = walls_of(folder)
    return {
        size: {
            "whole": [walls[number][0] for number in chosen],
            "distribute": [walls[number][1] for number in chosen],
            "cpu": [cpu[number] for number in chosen],
        }
        for size, chosen in numbers.items()
    }


def send_one(engine: Engine, size: str, rng: np.random.Generator) -> tuple[int, float]:
    """The number in its id, and the CPU seconds of all processes until its token is here."""
    data = rng.bytes(IMAGES[size])
    if size == "hash":
        data = hashlib.sha256(data).digest()
    ids = rng.integers(0, engine.model_config.vocab_size, (1, 16)).tolist()
    requests = engine.make_requests(None, {"max_new_tokens": 1, "ignore_eos": True}, ids, [data])[1]
    pids = pids_of(engine)
    before = sum(process_cpu_ns(pid) for pid in pids)
    (stream,) = finish(engine, requests)
    used = (sum(process_cpu_ns(pid) for pid in pids) - before) / 1e9
    return int(re.search(r"\d+$", stream.rid).group()), used


def walls_of(folder: Path) -> dict[int, tuple[float, float]]:
    """For each request's number the seconds from its hand-over until the last rank had it, and from when rank 0 or the
    router had begun to encode it."""
    threads = load(folder)
    trace = RunTrace(threads)
    handed = {r.value: r.wall_ns for t in threads if t.process == "main" for r in t.requests if r.name == "received"}
    had: dict[int, list[int]] = {}
    for rank in trace.ranks:
        for record in rank.requests:
            had.setdefault(record.value, []).append(record.wall_ns)
    walls = {}
    for number, times in had.items():
        encoding = trace.encoding_began(times[0])
        walls[number] = (max(times) - handed[number]) / 1e9, (max(times) - encoding) / 1e9
    return walls


def count_hops(stages: list[str], sizes: list[str]) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Messages and bytes of a request, first of the hop from main, then of that to the ranks."""
    chosen = {key: hops for key, hops in HOPS.items() if key[0] in stages}
    ways = {(channel, codec) for channel, codec, _ in chosen.values()} | {(way, "") for _, _, way in chosen.values()}
    blocks = tuple(Block(size, 1, 1) for size in sizes)
    ordered = sorted(ways, key=lambda way: (way[0].name, way[1]))
    phases = [Phase(n, way.name, TP, codec, blocks, True) for n, (way, codec) in enumerate(ordered)]
    mechanisms = {way.name: way for way, _ in ordered}
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    samples = measure("bench image", mechanisms, phases, timeout=120)[0]
    for phase in phases:
        for block in phase.blocks:
            messages, nbytes, *_ = samples[len(found)].counts
            found[phase.mechanism, phase.codec, block.payload] = messages, nbytes
    counts = {}
    for (stage, constants), (channel, codec, way) in chosen.items():
        for size in sizes:
            first, second = found[channel.name, codec, size], found[way.name, "", size]
            counts[stage, constants, size] = {"messages": [first[0], second[0]], "bytes": [first[1], second[1]]}
    return counts
