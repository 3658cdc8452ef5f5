"""Fault switches: make one process misbehave at a turn of its own, for tests and labs (`--fault`).

```
 TP1: die at turn 7                      SIGKILL, to itself
 DP0 TP1: stop at turn 7                 SIGSTOP, to itself: it exists, and does nothing
 TP0: raise at start; TP1: slow 20 ms at turn 3
 detokenizer: abort at turn 2            any other process by its name; its turns are the messages that it took
```

    die, stop, abort (SIGABRT, as from C code), raise (an exception), hang (it waits for ever)      any process
    slow X ms     each turn from then on takes so much longer                                       ranks
    own clock     the cache's clock, by which the least recently used goes first, is set back once  ranks that plan
    own seed      requests that are admitted from then on are sampled with a seed of this rank      ranks
    noise X       normal noise of that scale on this rank's logits, after they were gathered        ranks, not on sim

The last three are what made ranks of old versions disagree: they end in other tokens, another batch, or a hang.
`--check-divergence` finds another batch. What is not switched on costs nothing: a rank's runner is wrapped only where
the text names that rank.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from common.args import EngineArgs
from common.processes import ChildContext, Slot

if TYPE_CHECKING:
    from common.batch import BatchPlan, Sampled
    from common.worker import Worker

ENDS = ("die", "stop", "abort", "raise", "hang")
EXAMPLE = '--fault takes things like "DP0 TP1: die at turn 7" or "TP0: slow 20 ms at turn 3; TP1: raise at start"'
PATTERN = re.compile(
    r"(?P<target>(DP\d+ )?TP\d+|[a-z][a-z-]*): "
    r"(?P<kind>die|stop|abort|raise|hang|slow|own clock|own seed|noise)"
    r"( (?P<amount>\d+(\.\d+)?)(?P<unit> ms)?)? at (start|turn (?P<turn>[1-9]\d*))"
)


class InjectedFault(RuntimeError):
    """What `raise` raises."""


@dataclass(frozen=True)
class Fault:
    """target: "TP1", "DP0 TP1", or a process's name without "evo-". turn: from 1 on; 0 is the start. amount: in ms or
    of the noise."""

    target: str
    kind: str
    turn: int
    amount: float = 0.0

    def names(self, process: str) -> bool:
        rank = process.partition(" ")[2]  # "DP0 TP1", or "TP1" where there is one replica
        return process == f"evo-{self.target}" or self.target in (rank, f"DP0 {rank}")


def parse_faults(text: str | None) -> list[Fault]:
    """ValueError of one line for what is no fault."""
    faults = []
    for part in filter(None, (part.strip() for part in (text or "").split(";"))):
        found = PATTERN.fullmatch(part)
        if not found:
            raise ValueError(f"--fault {part!r}: {EXAMPLE}")
        kind, amount = found["kind"], found["amount"]
        if (amount is not None) != (kind in ("slow", "noise")) or (found["unit"] is not None) != (kind == "slow"):
            raise ValueError(f"--fault {part!r}: slow goes with ms, noise with a number, and nothing else; {EXAMPLE}")
        fault = Fault(found["target"], kind, int(found["turn"] or 0), float(amount or 0))
        if kind not in ENDS and ("TP" not in fault.target or not fault.turn):
            raise ValueError(f"--fault {part!r}: {kind} is of a rank, and from a turn on; {EXAMPLE}")
        faults.append(fault)
    return faults


def check_faults(args: EngineArgs, processes: Iterable[str] | None) -> None:
    """ValueError of one line for a fault that would never happen. processes: the names of those that will be started,
    where that is known."""
    processes = None if processes is None else [name for name in processes if name != "main"]
    for fault in parse_faults(args.fault):
        if processes is not None and not any(fault.names(name) for name in processes):
            known = ", ".join(name.removeprefix("evo-") for name in processes)
            raise ValueError(f"--fault: there is no process {fault.target!r}; there are {known}")
        if fault.kind == "noise" and args.device == "sim":
            raise ValueError("--fault noise: --device sim has no logits")
        if fault.kind == "own clock" and args.disable_radix_cache:
            raise ValueError("--fault own clock: it is the radix cache's, which --disable-radix-cache leaves out")
        follows = args.scheduling == "rank0" and not fault.target.endswith("TP0")
        if fault.kind == "own clock" and follows:
            raise ValueError(f"--fault own clock: with --scheduling rank0 {fault.target} plans nothing")


# ---------------------------------------------------------------------- in the processes


def in_process(args: EngineArgs, context: ChildContext) -> None:
    """First in a process that is no rank: its faults happen as its slot counts the messages it takes."""
    faults = [fault for fault in parse_faults(args.fault) if fault.names(context.name)]
    if faults:
        _at_start(faults)
        context.slot = _FaultySlot(context.slot, faults)


class _FaultySlot(Slot):
    def __init__(self, slot: Slot, faults: list[Fault]) -> None:
        super().__init__(slot.cells)
        self._faults = faults
        self._taken = 0

    def take(self, count: int) -> None:
        super().take(count)
        before, self._taken = self._taken, self._taken + count
        for fault in self._faults:
            if before < fault.turn <= self._taken:
                _end(fault)


def of_rank(args: EngineArgs, label: str) -> list[Fault]:
    """First in a rank: its faults, for `in_worker`; those of the start happen."""
    faults = [fault for fault in parse_faults(args.fault) if fault.names(f"rank {label}")]
    _at_start(faults)
    return faults


def in_worker(worker: Worker, faults: list[Fault]) -> None:
    """A rank's faults happen before the forward of their turn."""
    execute = worker.runner.execute

    def faulty(plan: BatchPlan) -> Sampled:
        for fault in faults:
            if plan.turn == fault.turn:
                _begin(worker, fault)
            if fault.kind == "slow" and plan.turn >= fault.turn:
                time.sleep(fault.amount / 1e3)
            if fault.kind == "own seed" and plan.turn >= fault.turn:
                plan = _with_own_seeds(plan, worker.rank)
        return execute(plan)

    worker.runner.execute = faulty


def _at_start(faults: list[Fault]) -> None:
    for fault in faults:
        if not fault.turn:
            _end(fault)


def _begin(worker: Worker, fault: Fault) -> None:
    if fault.kind == "own clock":
        worker.scheduler.kv.tree.set_clock_back()
    elif fault.kind == "noise":
        worker.runner.model.logits = _noisy(worker.runner.model.logits, fault.amount, seed=worker.rank)
    else:
        _end(fault)


def _end(fault: Fault) -> None:
    """What any process can do to itself; nothing for the kinds that are not of ENDS."""
    if fault.kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "abort":
        os.abort()
    elif fault.kind == "raise":
        when = f"turn {fault.turn}" if fault.turn else "start"
        raise InjectedFault(f"--fault {fault.target}: raise at {when}")
    elif fault.kind == "hang":
        while True:
            time.sleep(3600)


def _with_own_seeds(plan: BatchPlan, rank: int) -> BatchPlan:
    """Rows keep the seed of their first chunk."""
    own = [
        msgspec.structs.replace(seq, sampling=msgspec.structs.replace(seq.sampling, seed=seq.sampling.seed + 1 + rank))
        if seq.sampling is not None
        else seq
        for seq in plan.prefill
    ]
    return msgspec.structs.replace(plan, prefill=own)


def _noisy(logits: Callable, scale: float, seed: int) -> Callable:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def noisy(hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, H] -> logits float32 [M, vocab]"""
        clean = logits(hidden)
        return clean + scale * torch.randn(clean.shape, generator=generator).to(clean.device)

    return noisy
