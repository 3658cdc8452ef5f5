"""SimRunner: ModelRunner's place without a model. A forward is a wait of the predicted length.

```
 launch ──── wait for the slowest rank ────┬──────── predicted ────────┬── overshoot ──
   own time, published in shared memory    latest launch               deadline
```

Of the overshoot, `late` is what the kernel was late in waking the thread (`common.sim.sleep`). The rest is the thread's
wait for the interpreter's lock, which another thread of the process may hold.

The ranks of a replica meet at each forward, as the collectives of a real one make them: each publishes when it
launched and blocks until all have, and all sleep up to the same deadline on CLOCK_MONOTONIC, off the cores. Prediction,
bookkeeping and tokens are done after they have met, where a GPU would be computing: before it they would take the cores
from ranks that the turn's input has yet to reach. Every part is counted (`counts`), so that an account of the control
plane can leave it out.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import numpy as np

from common.batch import BatchPlan, PrefillSeq, Sampled
from common.messages import unpack_ids
from common.sim.profiles import SimProfile
from common.sim.roofline import Roofline
from common.sim.sleep import Sleeper
from common.sim.tokens import hashed_tokens
from common.tracing import NO_TRACE, NoTrace, Trace

if TYPE_CHECKING:
    from common.parallel.collectives import Collectives

# A launch time and a CPU time, both in ns and below 2**63, travel as one int.
CPU_BITS = 63
LAUNCH_SHARE = 0.8
HASH_ROUNDS = 200  # of which the time is measured first; about 0.1 ms


class SimRunner:
    def __init__(
        self,
        profile: SimProfile,
        tp: Collectives,
        token_ids: list[int],
        *,
        max_running_requests: int,
        launch_us: float = 0.0,
        trace: Trace | NoTrace = NO_TRACE,
    ) -> None:
        """token_ids: those that may come out. launch_us: CPU time that launching a forward burns, before it begins."""
        self._tp = tp
        self.trace = trace  # of the thread that executes
        self._roofline = Roofline(profile, tp.size)
        self._token_ids = np.array(token_ids, dtype=np.int32)
        self._launch_ns = round(launch_us * 1e3)
        self._lengths = np.zeros(max_running_requests, dtype=np.int64)  # tokens with KV
        self._seeds = np.zeros(max_running_requests, dtype=np.int64)
        self._forwards = self._predicted = self._slept = self._overshoot = self._waited = 0  # ns, but the first
        self._decodes = self._decode_late = 0  # the second in ns
        self._cpu = self._launch_cpu = self._others_cpu = 0
        self._sleeper = Sleeper()
        self._rounds_per_ns = HASH_ROUNDS / min(_hash(HASH_ROUNDS) for _ in range(3)) if self._launch_ns else 0.0

    def execute(self, plan: BatchPlan) -> Sampled:
        """Let one turn pass: int32 token ids, one per prefill sequence with `sample`, in order, or one per decode row.

        ValueError if the plan does not fit what the rows hold. Collective: every rank executes the same plan.
        """
        self.trace.part("forward")
        self._launch()
        launched = time.monotonic_ns()
        cpu_before = time.thread_time_ns()
        latest = self._meet(launched)
        if plan.extras:
            raise ValueError(f"row {plan.extras[0].row}: there are no logits for penalties or log-probabilities")
        if plan.prefill:
            seconds = self._roofline.prefill_seconds(plan.prefill)
            rows = self._extend(plan.prefill)
        else:
            rows = self._append(unpack_ids(plan.decode_rows))
            seconds = self._roofline.decode_seconds(len(rows), int(self._lengths[rows].sum()))
        # The token being sampled has as many tokens before it as the row holds.
        tokens = hashed_tokens(self._seeds[rows], self._lengths[rows], self._token_ids)
        late = self._sleep(latest, round(seconds * 1e9))
        if not plan.prefill:
            self._decodes += 1
            self._decode_late += late
        self._cpu += time.thread_time_ns() - cpu_before
        return Sampled(tokens)

    def counts(self) -> dict[str, float]:
        """Seconds of all forwards so far. From launch to return they took wait + predicted + overshoot.
        sim_decode_late_seconds, of decode steps alone: the part of the overshoot in which the kernel had not woken the
        thread.

        sim_cpu_seconds is CPU time that only the simulation takes, on this rank; sim_others_cpu_seconds the same on the
        replica's other ranks, as of the last launch. What launching burned stands in for a real cost: it is not in it.
        """
        return {
            "sim_forwards": self._forwards,
            "sim_predicted_seconds": self._predicted / 1e9,
            "sim_wait_seconds": self._waited / 1e9,
            "sim_slept_seconds": self._slept / 1e9,
            "sim_overshoot_seconds": self._overshoot / 1e9,
            "sim_decodes": self._decodes,
            "sim_decode_late_seconds": self._decode_late / 1e9,
            "sim_cpu_seconds": self._cpu / 1e9,
            "sim_others_cpu_seconds": self._others_cpu / 1e9,
            "sim_launch_cpu_seconds": self._launch_cpu / 1e9,
        }

    # ------------------------------------------------------------------ time

    def _launch(self) -> None:
        """Keep a core busy, and not the interpreter: the driver's part in launching kernels holds up no other thread of
        the process. The thread's own CPU clock says when it is enough, so being preempted does not shorten the work;
        and each call is for most of what is left, since the core may be slower now than when its speed was taken."""
        burned = 0
        while (left := self._launch_ns - burned) > 0:
            rounds = max(1, round(LAUNCH_SHARE * left * self._rounds_per_ns))
            burned += _hash(rounds)
        self._launch_cpu += burned

    def _meet(self, launched: int) -> int:
        """When the latest rank launched; returns once all have."""
        met = self._tp.all_gather_ints(launched << CPU_BITS | self._cpu)
        latest = max(value >> CPU_BITS for value in met)
        self._waited += latest - launched
        self._others_cpu = sum(value & ((1 << CPU_BITS) - 1) for value in met) - self._cpu
        return latest

    def _sleep(self, latest: int, predicted: int) -> int:
        """Return `predicted` ns after the latest rank's launch; ns that the kernel was late."""
        deadline = latest + predicted
        before = time.monotonic_ns()
        late = self._sleeper.until(deadline)
        after = time.monotonic_ns()
        self._forwards += 1
        self._predicted += predicted
        self._slept += after - before
        self._overshoot += after - deadline
        return late

    # ------------------------------------------------------------------ rows

    def _extend(self, seqs: list[PrefillSeq]) -> np.ndarray:
        """Take the chunks in; the rows that sample."""
        for seq in seqs:
            if not 0 <= seq.row < len(self._lengths):
                raise ValueError(f"row {seq.row}: there are rows 0..{len(self._lengths) - 1}")
            if seq.sampling is None and seq.start != self._lengths[seq.row]:
                raise ValueError(
                    f"row {seq.row}: a later chunk starts at token {seq.start}, and the row holds"
                    f" {self._lengths[seq.row]} tokens"
                )
            if seq.sampling is not None:
                self._seeds[seq.row] = seq.sampling.seed
            self._lengths[seq.row] = seq.start + len(seq.input_ids) // 4
        return np.array([seq.row for seq in seqs if seq.sample], dtype=np.int32)

    def _append(self, rows: np.ndarray) -> np.ndarray:
        """One token more for each row of a decode step."""
        if len(rows) == 0 or rows.min() < 0 or rows.max() >= len(self._lengths) or not self._lengths[rows].all():
            raise ValueError(f"a decode step of rows {rows.tolist()}: each must have been prefilled")
        self._lengths[rows] += 1
        return rows


def _hash(rounds: int) -> int:
    """ns of this thread's CPU time that so many rounds took, without the interpreter's lock."""
    began = time.thread_time_ns()
    hashlib.pbkdf2_hmac("sha256", b"launch", b"", rounds)
    return time.thread_time_ns() - began
