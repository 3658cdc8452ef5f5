"""The mechanisms of `bench distribute`: the stages' own code with nobody behind it, and the payloads of a turn.

gloo carries the requests alone. An rpyc call also brings an answer back, and with `--scheduling rank0` a turn is two
calls, the second of which carries the plan: so the stand-ins here plan and answer what the engine does, in the same
number of bytes, and compute nothing.
"""

from __future__ import annotations

from typing import Any

from common.args import EngineArgs
from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.messages import FinishReason, Request, TokenBatch, TokenChunk, TurnOutput, pack_ids
from experiments.bench.mechanism_base import Place, Took
from experiments.bench.mechanism_payloads import PROMPT, make_messages
from experiments.bench.mechanism_stages import GlooMsgpack, NoWorker, RpycValue

RUNNING = 16  # requests, of a decode turn and of an arrival
FINISH = FinishReason("length")


def plan_for(requests: list[Request]) -> BatchPlan:
    """Prefill all of them; without any, a decode step of 16."""
    if not requests:
        return BatchPlan(1000, [], decode_rows=pack_ids(range(RUNNING)), decode_slots=pack_ids(range(RUNNING)))
    slots = pack_ids(range(PROMPT))
    seqs = [
        PrefillSeq(row, 0, request.input_ids, slots, b"", RowSampling(0.0, 1.0, -1, 42), True)
        for row, request in enumerate(requests)
    ]
    return BatchPlan(1000, seqs)


def output_for(requests: list[Request]) -> TurnOutput:
    """The only token of each request that has just come; nothing after a decode step of requests that do not stream."""
    chunks = [TokenChunk(request.rid, [100 + i], FINISH, PROMPT) for i, request in enumerate(requests)]
    return TurnOutput(TokenBatch(0, chunks) if chunks else None, [], len(requests), busy=True, stop=False)


class Answering(NoWorker):
    """Answers as a rank does after a turn of 16 requests, but at once."""

    def __init__(self, rank: int, took: Took) -> None:
        super().__init__(took)
        self.rank = rank
        self._answers = {count: output_for(make_messages(count)) for count in ("0", "16")}
        self._plans = {count: plan_for(make_messages(count)) for count in ("0", "16")}

    def step(self, requests: list[Request]) -> TurnOutput:
        self._took(requests)
        return self._answers["16" if requests else "0"]

    def plan(self, requests: list[Request]) -> BatchPlan:
        self._requests = requests
        return self._plans["16" if requests else "0"]

    def execute(self, plan: BatchPlan) -> None:
        self._took([plan])

    def commit(self, plan: BatchPlan, sampled: None) -> None:
        pass

    def plan_further(self) -> None:
        return None

    def output(self) -> TurnOutput:
        return self._answers["16" if self._requests else "0"]


class RpycStep(RpycValue):
    name = "rpyc step"
    what = "rpyc: step(requests) on every rank, rank 0 answers what came out"

    def _worker(self, index: int, took: Took) -> Answering:
        return Answering(index, took)


class RpycPlanExecute(RpycStep):
    name = "rpyc plan, execute"
    what = "rpyc: plan(requests) on rank 0, execute(plan) on every rank, rank 0 answers what came out"

    def _args(self, place: Place) -> EngineArgs:
        return EngineArgs(stage="rpyc", tp_size=place.ranks, scheduling="rank0", constants=self.constants)

    def brings(self, index: int, payload: str) -> list[Any]:
        return [plan_for(make_messages(payload))]


FLOORS = {one.name: one for one in (RpycPlanExecute, RpycStep, GlooMsgpack)}
