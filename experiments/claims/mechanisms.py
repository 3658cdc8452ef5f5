"""Bare mechanisms that several trials look at, as `bench mechanisms` measures them: all counted, two timed."""

from __future__ import annotations

from typing import Any

from experiments.bench.mechanism_base import Mechanism
from experiments.bench.mechanism_ranks import Block, Phase
from experiments.bench.mechanism_run import collect, measure
from experiments.bench.mechanism_stages import GlooBuffer, GlooList, RpycReference, RpycValue
from experiments.bench.rounds import medians
from experiments.claims.once import once

ROUNDS = 7
COUNTED: dict[str, type[Mechanism]] = {
    one.name: one for one in (RpycReference, RpycValue, GlooList, GlooBuffer)
}  # with 2 and with 3 ranks
TIMED = (GlooList.name, GlooBuffer.name)
PAYLOADS = ("0", "1", "1 MiB")


def counts(mechanism: str, ranks: int, payload: str) -> dict[str, float]:
    """Of a step, of all processes: messages, bytes, encodings, decodings."""
    return cells()[mechanism, ranks, payload]["counts"]


def walls(mechanism: str) -> list[float]:
    """us of a step with 1 MiB to one more rank: the median of each round."""
    return medians(cells()[mechanism, 2, "1 MiB"]["wall"])


@once
def cells() -> dict[tuple[str, int, str], dict[str, Any]]:
    counted = tuple(Block(payload, 1, 2) for payload in PAYLOADS)
    phases: list[Phase] = []
    for ranks in (2, 3):
        for name in COUNTED:
            phases.append(Phase(len(phases), name, ranks, "msgpack", counted, True))
    for _ in range(ROUNDS):
        for name in TIMED:
            phases.append(Phase(len(phases), name, 2, "msgpack", (Block("1 MiB", 1, 3),), False))
    try:
        samples, _ = measure("claims", COUNTED, phases, timeout=120)
    except SystemExit as error:  # in one line, when a process died
        raise TimeoutError(str(error)) from None
    return {(cell["mechanism"], cell["ranks"], cell["payload"]): cell for cell in collect(samples)}
