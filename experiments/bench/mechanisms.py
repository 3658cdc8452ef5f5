"""`bench mechanisms`: what it costs to bring a list of requests from one process to every rank, by each mechanism.

One step: the driver has a Python list of messages, and then every rank has that list as Python objects. Where ranks
are called and answer (rpyc, socket-call), the driver stands beside T ranks, and a step ends when rank 0's answer is
back. Elsewhere the driver is rank 0 and sends to the T-1 others; so at T=1 there are only calls.

    rpyc-reference, rpyc-value            the calls of stage rpyc, with --constants era and level
    gloo-list, gloo-buffer, gloo-msgpack  the broadcasts of 0.2.0, of 0.4.0, and of --constants level
    zmq-ipc, zmq-tcp                      the channels between processes: level (msgpack), and 0.2.0 (TCP, pickle)
    queue, pipe, socket, socket-call, shm plain library calls, with msgpack

    wall   from the driver's handing over to the last rank's having the list, on the clock that all processes share
    CPU    user and system time of all processes per step, as the system counts it, the pause in it
    counts messages, bytes, encodings and decodings per step, of all processes; bytes without gloo's and ZMQ's headers

Payloads are 0, 1 and 16 requests of 512 token ids, and at the smallest T above 1 also a request with an image of 1 KiB
to 16 MiB of random bytes. The driver sleeps 1 ms after each step: mechanisms that spin burn CPU meanwhile. Each
mechanism is opened, warmed, measured and closed alone; all of them in turn make a round. Python's garbage collector
runs between them only.

As a denominator the bench is itself checked, at T=2: wall times as multiples of a raw unix socket's in the same round
(calls: of a socket's with an answer) must be within 25% (the whole interval) of those measured before with other
programs, on a virtual machine with 2 cores of an AMD EPYC (Zen 4). There the 16 requests held their ids in Python lists
and were pickled, so that is a payload of its own here, `16 lists`. The ratios need a quiet machine, and with no request
they need the same scheduler: such a step is little but waking the receiver, which costs three times as much on another
core as on the driver's own. So a raw socket between two bare processes is measured beside it, before and after
(`bare_socket.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from common.args import EngineArgs
from evolution.environment import environment
from experiments.bench.mechanism_base import Mechanism
from experiments.bench.mechanism_payloads import LISTS, REQUESTS, SIZES, nominal_bytes, warm_and_timed
from experiments.bench.mechanism_plain import Pipe, Queue, SharedMemory, UnixSocket, UnixSocketCall
from experiments.bench.mechanism_ranks import PACE, Block, Phase
from experiments.bench.mechanism_run import collect, measure
from experiments.bench.mechanism_stages import (
    GlooBuffer,
    GlooList,
    GlooMsgpack,
    RpycReference,
    RpycValue,
    ZmqIpc,
    ZmqTcp,
)
from experiments.bench.mechanism_tables import show
from experiments.bench.option_lists import check_repeats, numbers
from experiments.bench.option_lists import names as names_of
from experiments.bench.rounds import medians
from experiments.bench.verdicts import combined
from experiments.intervals import pairwise_ratio, verdict

__all__ = ["add_arguments", "run", "show"]

CALLS = (RpycReference, RpycValue, UnixSocketCall)
HOPS = (GlooList, GlooBuffer, GlooMsgpack, ZmqIpc, ZmqTcp, Queue, Pipe, UnixSocket, SharedMemory)
MECHANISMS: dict[str, type[Mechanism]] = {one.name: one for one in (*CALLS, *HOPS)}
RANKS, MOST_RANKS = "1,2,4,8", 16
CHECKED_RANKS = 2
# (mechanism, to which, payload) -> its wall time over the other's, each from medians of one run of other programs.
# rpyc-value: there the ranks were waited for one after the other, without an event loop.
YARDSTICKS = {
    ("rpyc-reference", "socket-call", "0"): 22.0,
    ("rpyc-reference", "socket-call", LISTS): 5.2,
    ("rpyc-value", "socket-call", "0"): 3.7,
    ("gloo-list", "socket", "0"): 9.4,
    ("gloo-list", "socket", LISTS): 8.0,
    ("gloo-buffer", "socket", "0"): 9.0,
    ("gloo-buffer", "socket", LISTS): 2.4,
    ("zmq-ipc", "socket", "0"): 2.8,
    ("zmq-ipc", "socket", LISTS): 1.06,
    ("zmq-tcp", "socket", "0"): 3.7,
    ("zmq-tcp", "socket", LISTS): 1.08,
    ("queue", "socket", "0"): 2.8,
    ("queue", "socket", LISTS): 1.08,
    ("pipe", "socket", "0"): 1.46,
    ("pipe", "socket", LISTS): 1.0,
    ("shm", "socket", "0"): 1.15,
    ("shm", "socket", LISTS): 1.03,
}
TOLERANCE = 1.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default=RANKS, help=f"values of T, default: {RANKS}")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS), help="names as above; default: all")
    parser.add_argument("--out", metavar="DIR", help="write mechanisms.png and mechanisms.svg there")


def run(options: argparse.Namespace) -> dict[str, Any]:
    names, ranks = check_options(options)
    phases = plan_phases(names, ranks, options.repeats)
    seconds = expected_seconds(phases)
    print(f"{len(names)} mechanisms, T = {options.ranks}, {options.repeats} rounds: about {seconds:.0f} s", flush=True)
    mechanisms = {name: MECHANISMS[name] for name in names}
    bare = [measure_bare_socket()]
    samples, pause = measure("bench mechanisms", mechanisms, phases, timeout=60 + 10 * seconds)
    bare.append(measure_bare_socket())
    result = {
        "bench": "mechanisms",
        "unit": "us per step",
        "pace_ms": PACE * 1000,
        "pause_cpu": pause,
        "repeats": options.repeats,
        "ranks": ranks,
        "what": {name: MECHANISMS[name].what for name in names},
        "cells": collect(samples),
    }
    result["bare_socket"] = {payload: [one[payload] for one in bare] for payload in bare[0]}
    result["yardsticks"] = judge(result["cells"])
    result["verdict"] = combined(one["verdict"] for one in result["yardsticks"])
    return {**result, "environment": environment(EngineArgs())}


def check_options(options: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Names of mechanisms, values of T. ValueError of one line."""
    check_repeats(options.repeats)
    expected = f"expected numbers from 1 to {MOST_RANKS}, as in {RANKS}"
    ranks = sorted(numbers("--ranks", options.ranks, 1, expected))
    if ranks[-1] > MOST_RANKS:
        raise ValueError(f"--ranks {options.ranks!r}: {expected}")
    names = names_of("--mechanisms", options.mechanisms, MECHANISMS)
    if ranks == [1] and not any(MECHANISMS[name].answers for name in names):
        raise ValueError(f"--ranks 1: {', '.join(names)} would have nobody to send to; add a larger number")
    return names, ranks


# ---------------------------------------------------------------------- measuring


def plan_phases(names: list[str], ranks: list[int], repeats: int) -> list[Phase]:
    """A round in which everything is counted, then `repeats` in which it is timed.

    All mechanisms with small payloads, then all with large ones: those that are compared are close in time.
    """
    phases: list[Phase] = []
    sizes_at = next((count for count in ranks if count > 1), None)
    for number in range(1 + repeats):
        for count in ranks:
            groups = [("msgpack", list(REQUESTS))]
            if count == CHECKED_RANKS:
                groups.append(("pickle", [LISTS]))
            if count == sizes_at:
                groups.append(("msgpack", list(SIZES)))
            for codec, payloads in groups:
                blocks = tuple(_block(payload, number == 0) for payload in payloads)
                for name in names:
                    mechanism = MECHANISMS[name]
                    if mechanism.receivers(count) and (payloads != [LISTS] or mechanism.carries_lists):
                        phases.append(Phase(len(phases), name, count, codec, blocks, number == 0))
    return phases


def _block(payload: str, counting: bool) -> Block:
    return Block(payload, 1, 2) if counting else Block(payload, *warm_and_timed(payload))


def expected_seconds(phases: list[Phase]) -> float:
    """From the seconds that a start, an opening, a step and a MiB take on two cores of this decade."""
    total = 2.0 + 1.0 * max(phase.ranks for phase in phases)
    for phase in phases:
        mechanism = MECHANISMS[phase.mechanism]
        total += 0.05 + 0.02 * phase.ranks
        for block in phase.blocks:
            mib = nominal_bytes(block.payload) / (1 << 20)
            per_receiver = 0.0002 + mib * mechanism.seconds_per_mib
            total += block.steps * (1.2 * PACE + mechanism.receivers(phase.ranks) * per_receiver)
    return total


def measure_bare_socket() -> dict[str, list[float]]:
    """us of each step of a socket with no harness around it, by payload."""
    command = [sys.executable, "-m", "experiments.bench.bare_socket"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


# ---------------------------------------------------------------------- judging


def judge(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The yardsticks of which both sides were measured; the ratio is that of the medians of each round."""
    walls = {
        (cell["mechanism"], cell["payload"]): medians(cell["wall"]) for cell in cells if cell["ranks"] == CHECKED_RANKS
    }
    judged = []
    for (mechanism, base, payload), expected in YARDSTICKS.items():
        above, below = walls.get((mechanism, payload)), walls.get((base, payload))
        if above is None or below is None:
            continue
        ratio = pairwise_ratio(above, below)
        both = verdict(ratio, at_least=expected / TOLERANCE), verdict(ratio, at_most=expected * TOLERANCE)
        judged.append({"mechanism": mechanism, "to": base, "payload": payload, "expected": expected})
        judged[-1] |= {"ratio": ratio, "verdict": combined(both)}
    return judged
