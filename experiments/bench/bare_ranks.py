"""The ranks of one replica without an engine around them: no scheduler, no sockets, no main process, no detokenizer.

They execute the plans that the engine's scheduler would make for `bench engine`'s requests, and time their
collectives: `own` is copying, posting and adding, `wait` is waiting for the other ranks to arrive.
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.args import EngineArgs
from common.batch import BatchPlan, PrefillSeq, RowSampling
from common.messages import pack_ids
from common.models.config import load_config
from common.parallel.collectives import Collectives
from common.parallel.group import GroupSpec, join
from common.processes import ChildContext, Supervisor
from common.ranks import rank_env, threads_per_rank
from common.runner import ModelRunner

GREEDY = RowSampling(0.0, 1.0, -1, 0)


class TimedCollectives:
    """Collectives that meet once more before each exchange: the time to that meeting is the wait, the rest is the
    collective's own. Meeting twice costs a few microseconds, which are counted as wait."""

    def __init__(self, inner: Collectives) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.own = self.wait = 0.0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._timed(self._inner.all_reduce, x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._timed(self._inner.all_gather, x)

    def _timed(self, collective: Any, x: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        self._inner.barrier()
        met = time.perf_counter()
        result = collective(x)
        self.wait += met - began
        self.own += time.perf_counter() - met
        return result


def run_bare_ranks(args: EngineArgs, batches: list[np.ndarray], new_tokens: int) -> list[dict[str, float]]:
    """Per batch of prompts (int [prompts, tokens]): seconds, and of them own and wait of the collectives, of the
    slower rank. Starts the ranks, runs each batch once to warm up and once for the clock, ends them."""
    failures: list[Any] = []
    supervisor = Supervisor(failures.append)
    with tempfile.TemporaryDirectory() as folder:
        group = GroupSpec.create(args.tp_size, args.collectives, args.device, Path(folder), "bare")
        for rank in range(args.tp_size):
            supervisor.start(
                f"bench-rank {rank}",
                "experiments.bench.bare_ranks:run_rank",
                {"args": args, "rank": rank, "group": group, "batches": batches, "new_tokens": new_tokens},
                rank_env(args),
            )
        try:
            reports = [report.info["batches"] for report in supervisor.wait_ready()]
        finally:
            supervisor.kill()
    return [max(same, key=lambda one: one["seconds"]) for same in zip(*reports, strict=True)]


def run_rank(
    context: ChildContext, args: EngineArgs, rank: int, group: GroupSpec, batches: list[np.ndarray], new_tokens: int
) -> None:
    torch.set_num_threads(threads_per_rank(args))
    tp = TimedCollectives(join(group, rank))
    runner = ModelRunner(
        load_config(args.model_path),
        tp,
        max_running_requests=args.max_running_requests,
        context_length=args.context_length,
        max_total_tokens=args.max_total_tokens,
        dtype=args.dtype,
        packed=not args.disable_packed_linear,
    )
    reports = []
    for prompts in batches:
        _generate(runner, prompts, 2)
        tp.own = tp.wait = 0.0
        began = time.perf_counter()
        _generate(runner, prompts, new_tokens)
        reports.append({"seconds": time.perf_counter() - began, "own": tp.own, "wait": tp.wait})
    context.ready({"batches": reports})
    signal.pause()  # the parent kills what it has heard of


def _generate(runner: ModelRunner, prompts: np.ndarray, new_tokens: int) -> None:
    count, length = prompts.shape
    free = iter(range(runner.max_total_tokens))

    def slots(n: int) -> bytes:
        return pack_ids([next(free) for _ in range(n)])

    seqs = [PrefillSeq(row, 0, pack_ids(ids), slots(length), b"", GREEDY, True) for row, ids in enumerate(prompts)]
    runner.execute(BatchPlan(1, seqs))
    for turn in range(2, new_tokens + 1):
        runner.execute(BatchPlan(turn, [], pack_ids(range(count)), slots(count)))
