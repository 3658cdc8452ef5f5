"""One run of a comparison: an engine starts, warms up, takes the workload, and stops; and what there was to measure.

All runs are traced: the parts of a turn come from the trace, what tracing costs is `bench overhead`'s to say. CPU time
and context switches come from the OS, read before the workload and after it.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import time
from collections import Counter
from statistics import median
from typing import Any

import msgspec
import numpy as np

from common.args import EngineArgs
from common.messages import GenerateRequest
from common.models.config import ModelConfig
from common.run_folder import run_folder
from common.tokenizer import Tokenizer
from evolution.checks import resolve_args
from evolution.engine import Engine
from evolution.metrics import Samples, collect
from evolution.requests import RequestMaker
from evolution.streams import Stream
from experiments.compare.accounts import Accounts
from experiments.compare.records import MOST_SAMPLES, Arm, Distribute, Run, Strip, Turns, Workload
from report.distribute import distribute_split, replicas
from report.trace import ThreadTrace, Turn, counts_of, load, parts_of, working_turns

WARM_UP_TOKENS = 8
# Of a rank's turn: what its forward is, and where it waits for work.
FORWARD = ("prepare", "forward", "sample")
IDLE = "idle"
FINEST = 3000  # parts of a turn's length: a third of a pixel
# Of `Engine.stats()`: what rises and falls.
LEVELS = ("waiting", "running", "free_tokens", "evictable_tokens", "protected_tokens", "total_tokens")
RANK = re.compile(r"(?:DP(?P<replica>\d+) )?TP(?P<rank>\d+)$")


def arm_args(arm: Arm, settings: dict[str, Any]) -> tuple[EngineArgs, ModelConfig]:
    """The settings of an arm's engine, filled in. ValueError of one line for what it cannot do."""
    return resolve_args(
        EngineArgs(
            **settings,
            stage=arm.stage,
            constants=arm.constants,
            scheduling=arm.scheduling or None,
            tp_size=arm.tp_size,
            dp_size=arm.dp_size,
        )
    )


def make_rounds(workload: Workload, args: EngineArgs, config: ModelConfig) -> list[list[GenerateRequest]]:
    """The requests of every round, the same for every arm and repeat. ValueError if the engine would refuse them."""
    if workload.input_len >= args.context_length:
        raise ValueError(f"--input-len {workload.input_len}: the context is {args.context_length} tokens")
    make_requests = RequestMaker(args, config, Tokenizer(args.model_path))
    sampling = {"temperature": 0, "max_new_tokens": workload.output_len, "ignore_eos": True}
    rounds = []
    for number in range(workload.rounds):
        random = np.random.default_rng([args.random_seed % 2**64, number])
        ids = random.integers(0, config.vocab_size, (workload.num_prompts, workload.input_len)).tolist()
        rounds.append(make_requests(None, sampling, ids, stream=True)[1])
    return rounds


def measure(arm: Arm, settings: dict[str, Any], workload: Workload, repeat: int, order: int) -> Run:
    """EngineError when a process of the engine ends unasked."""
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    load_average = os.getloadavg()
    args, config = arm_args(arm, settings)
    rounds = make_rounds(workload, args, config)
    with run_folder() as folder:
        started = time.perf_counter()
        with Engine(
            **{name: getattr(args, name) for name in args.__dataclass_fields__} | {"trace_dir": str(folder)}
        ) as engine:
            startup_s = time.perf_counter() - started
            _warm_up(engine, rounds[0])
            accounts = Accounts(engine)
            stats = _stats(engine)
            window = [time.perf_counter_ns()]
            streams = [_send(engine, requests, workload.request_rate) for requests in rounds]
            window.append(time.perf_counter_ns())
            stats = {name: count - stats[name] for name, count in _stats(engine).items()}
            processes = accounts.since()
        all_threads = load(folder)
        threads = [thread.within(*window) for thread in all_threads]
    samples = [collect(streams_of_round) for streams_of_round in streams]
    return Run(
        arm=arm,
        repeat=repeat,
        order=order,
        began=began,
        load_average=load_average,
        startup_s=round(startup_s, 3),
        duration_s=round(sum(s.duration for s in samples), 6),
        output_tokens=sum(s.output_tokens for s in samples),
        tokens=_digest(streams),
        ttft_us=_us(samples, "ttft"),
        tpot_us=_us(samples, "tpot"),
        e2e_us=_us(samples, "e2e"),
        itl_us=thinned(_us(samples, "itl")),
        gap_us=thinned([round(gap * 1e6) for s in samples for gaps in s.chunk_gaps for gap in gaps]),
        stats=stats,
        processes=processes,
        turns=[_turns(thread) for thread in threads],
        distribute=_distribute(arm, all_threads, window),
        strip=_strip(threads),
    )


def _warm_up(engine: Engine, requests: list[GenerateRequest]) -> None:
    """A round of few tokens, as large as the workload's, so that no measured request pays for lazy initialisation."""
    ids = [np.frombuffer(request.input_ids, dtype=np.int32).tolist() for request in requests]
    new_tokens = min(WARM_UP_TOKENS, engine.args.context_length - len(ids[0]))
    engine.generate(input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True})
    engine.flush_cache()


def _send(engine: Engine, requests: list[GenerateRequest], request_rate: float | None) -> list[Stream]:
    """One round, from an empty cache to its last token."""
    engine.flush_cache()
    requests = [msgspec.structs.replace(request) for request in requests]
    if request_rate is None:
        streams = engine.submit(requests)
    else:
        streams = []
        began = time.perf_counter()
        for request, at in zip(requests, _arrivals(len(requests), request_rate), strict=True):
            time.sleep(max(0.0, began + at - time.perf_counter()))
            streams += engine.submit([request])
    for stream in streams:
        stream.result()
    return streams


def _arrivals(count: int, request_rate: float) -> np.ndarray:
    """Seconds after the begin, the same in every run."""
    return np.cumsum(np.random.default_rng(0).exponential(1 / request_rate, count))


def _stats(engine: Engine) -> dict[str, float]:
    """What grows with every turn and request, summed over the replicas."""
    total: Counter[str] = Counter()
    for replica in engine.stats():
        total.update({name: count for name, count in replica.items() if name not in LEVELS})
    return dict(total)


def _digest(streams: list[list[Stream]]) -> str:
    ids = [stream.result()["output_ids"] for of_round in streams for stream in of_round]
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:16]


def _us(samples: list[Samples], name: str) -> list[int]:
    return [round(seconds * 1e6) for s in samples for seconds in getattr(s, name)]


def thinned(samples: list[int]) -> list[int]:
    """Sorted; of more than MOST_SAMPLES so many, at even distances."""
    ordered = sorted(samples)
    if len(ordered) <= MOST_SAMPLES:
        return ordered
    return [ordered[round(place)] for place in np.linspace(0, len(ordered) - 1, MOST_SAMPLES)]


# ---------------------------------------------------------------------- what the trace says


def _turns(thread: ThreadTrace) -> Turns:
    working = working_turns(thread)
    others = sorted(set(range(1, len(thread.turns))) - set(working))
    place = RANK.search(thread.process)
    return Turns(
        process=thread.process,
        thread=thread.thread,
        replica=int(place["replica"] or 0) if place else None,
        rank=int(place["rank"]) if place else None,
        working=len(working),
        others=len(others),
        parts=_parts(thread, working),
        rest=_parts(thread, others),
        medians=_medians([thread.turns[n] for n in working]),
        counts=counts_of(thread, working or others),  # main, a dispatcher, the detokenizer: of all turns
    )


def _parts(thread: ThreadTrace, turns: list[int]) -> dict[str, tuple[float, float]]:
    return {
        name: (round(wall / 1000, 1), round(cpu / 1000, 1)) for name, (wall, cpu) in parts_of(thread, turns).items()
    }


def _medians(turns: list[Turn]) -> dict[str, float]:
    """One turn that took long, since something else ran, moves the sum of all turns and not the median."""
    kinds = {
        "turn": lambda part: part != IDLE,
        "forward": lambda part: part in FORWARD,
        "control": lambda part: part not in (IDLE, *FORWARD),
    }
    return {
        kind: round(median(sum(part.wall for part in turn.parts if chosen(part.name)) for turn in turns) / 1000, 1)
        for kind, chosen in (kinds if turns else {}).items()
    }


def _distribute(arm: Arm, threads: list[ThreadTrace], window: list[int]) -> list[Distribute]:
    if arm.stage == "rpyc" and arm.scheduling == "rank0":
        return []  # two calls a turn, which report.distribute does not tell apart
    found = []
    for replica, (sender, *others) in enumerate(replicas(threads)):
        sender = sender.within(*window)
        steps = distribute_split([sender, *others], working_turns(sender))
        if steps:
            found.append(Distribute(replica, **{step: round(us, 1) for step, us in steps.items()}))
    return found


def _strip(threads: list[ThreadTrace]) -> list[Strip]:
    """The working turn of replica 0's rank 0 that is the median by length, and what every thread did in its time."""
    first = next((t for t in threads if t.plans and "TP0" in t.process and "DP1" not in t.process), None)
    turns = [first.turns[n] for n in working_turns(first)] if first else []
    if not turns:
        return []
    turn = sorted(turns, key=lambda turn: turn.parts[-1].end - turn.begin)[len(turns) // 2]
    begin, end = turn.begin, turn.parts[-1].end
    strips = []
    for thread in threads:
        parts = [
            (part.name, (max(part.begin, begin) - begin) / 1000, (min(part.end, end) - begin) / 1000)
            for each in thread.turns
            for part in each.parts
            if part.end > begin and part.begin < end
        ]
        strips.append(Strip(thread.process, thread.thread, joined(parts, (end - begin) / 1000 / FINEST)))
    return strips


def joined(parts: list[tuple[str, float, float]], least: float) -> list[tuple[str, float, float]]:
    """(part, begin, end) with those next to each other that are shorter than `least` as one, of the name that has most
    of it: a loop that spins for the length of a turn has tens of thousands of them, too short to be drawn."""
    found: list[tuple[str, float, float]] = []
    short: list[tuple[str, float, float]] = []
    for name, begin, end in [*parts, ("", 0.0, float("inf"))]:
        if end - begin < least:
            short.append((name, begin, end))
            continue
        if short:
            shares: Counter[str] = Counter()
            for each, since, until in short:
                shares[each] += until - since
            found.append((max(shares, key=shares.__getitem__), short[0][1], short[-1][2]))
            short = []
        found.append((name, begin, end))
    return found[:-1]
