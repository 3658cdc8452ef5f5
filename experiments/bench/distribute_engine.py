"""The engine's side of `bench distribute`: its requests, and the turns that count."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.args import EngineArgs
from common.run_folder import run_folder
from evolution.engine import Engine
from experiments.bench.distribute_floor import RUNNING
from experiments.bench.distribute_turns import RunTrace, Turns
from experiments.bench.engines import finish, start
from experiments.bench.mechanism_payloads import PROMPT
from report.trace import load

DECODE_TURNS = 240
ARRIVALS = 24
FIRST_PROMPT = 2000  # tokens: while it is prefilled, the 16 arrive
TRIES = 3  # of an engine whose requests did not arrive together


@dataclass(frozen=True)
class Arm:
    name: str
    stage: str
    scheduling: str
    floor: str


def measure_engine(arm: Arm, ranks: int, repeat: int) -> tuple[dict[str, Turns], dict[str, float]]:
    """The turns with each payload; the CPU time of rank 0's other parts, and of a router's, in a decode turn, us.
    SystemExit of one line if the requests arrive together in no engine of TRIES."""
    for attempt in range(TRIES):
        trace = trace_engine(arm, ranks, (repeat, attempt))
        decoding, arrivals = trace.decode_turns(RUNNING), trace.arrival_turns(RUNNING)
        if len(decoding) == 3 and len(arrivals) >= ARRIVALS / 2:
            chosen = {"0": decoding[1], "0, streams": decoding[2], "16": arrivals}
            return {kind: trace.measure(numbers) for kind, numbers in chosen.items()}, trace.own_cpu_us(decoding[2])
        print(
            f"{arm.name} at T={ranks}, repeat {repeat}: {len(arrivals)} times of {ARRIVALS} the {RUNNING} requests"
            f" arrived together, and ran together {len(decoding)} times of 3; measured again",
            flush=True,
        )
    raise SystemExit(
        f"bench distribute: {arm.name} at T={ranks}: in {TRIES} engines the {RUNNING} requests did not arrive together"
        f" in half of the turns; measure on a quieter machine"
    )


def trace_engine(arm: Arm, ranks: int, seed: tuple[int, int]) -> RunTrace:
    with run_folder() as folder:
        # Without chunks the 16 prompts are one prefill: one turn takes them in, and its plan holds them all.
        args = EngineArgs(
            stage=arm.stage,
            tp_size=ranks,
            scheduling=arm.scheduling,
            device="sim",
            chunked_prefill_size=-1,
            trace_dir=str(folder),
        )
        with start(args) as engine:
            serve(engine, np.random.default_rng(seed))
        return RunTrace(load(folder))


def serve(engine: Engine, rng: np.random.Generator) -> None:
    """16 requests decode side by side; then, so many times, 16 arrive while another one is prefilled."""
    vocab = engine.model_config.vocab_size
    sampling = {"temperature": 0, "ignore_eos": True}

    def requests(count: int, length: int, tokens: int, stream: bool = False) -> list[Any]:
        ids = rng.integers(0, vocab, (count, length)).tolist()
        return engine.make_requests(None, {**sampling, "max_new_tokens": tokens}, ids, stream=stream)[1]

    finish(engine, requests(RUNNING, PROMPT, 40))  # warm
    for stream in (False, True):
        time.sleep(0.1)
        finish(engine, requests(RUNNING, PROMPT, DECODE_TURNS, stream))
    for _ in range(ARRIVALS):
        first, others = requests(1, FIRST_PROMPT, 8), requests(RUNNING, PROMPT, 1)
        streams = engine.submit(first)
        time.sleep(0.001)  # the first one's turn has begun
        finish(engine, others)
        streams[0].result()
