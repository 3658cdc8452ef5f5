"""Scheduler (the planner): which requests run in the next turn, and what becomes of the tokens they produce.

Pure CPU: no clock, no I/O, no randomness but a policy's seeded one. The same calls give the same plans on any rank, so
every rank of a replica can plan for itself. The rules follow SGLang 0.4.0's normal loop, but for two of retraction
(`_retract`): its victims wait in front of the queue, not at its end, and the margin is less than its flat 20 steps.

- A turn is a prefill if anything can be admitted, else one decode step of all that runs, or several (`common.turn`).
- A prompt longer than the chunk is prefilled over several turns. One such request is in flight at a time; its next
  chunk comes first in the next turn, and others may fill what it leaves.
- Admission counts on requests to stop early (`common.admission`). When that was too hopeful and the pool runs dry,
  requests are retracted: they lose their KV and wait in front of the queue with what they have produced. Since
  sampling depends on nothing but the request itself, they later go on as if nothing had happened.
- Prompt + max_new_tokens never exceeds the pool, so a request that runs alone always reaches its end.
- A loop that overlaps plans one turn ahead of the tokens (`plan_ahead`). As in 0.4.0 a request that ends, even by its
  length, is then computed one step too far: that token is dropped, and its KV slot freed once that step is committed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

import numpy as np

from common.admission import NewTokenRatio, PrefillBudget, decode_steps
from common.batch import BatchPlan, PrefillSeq, TurnLogprobs
from common.messages import FinishReason, pack_ids
from common.open_turn import OpenTurn
from common.policy import order_waiting
from common.request_book import RequestBook
from common.request_state import RequestState, finish_reason
from common.scheduler_config import SchedulerConfig


class Scheduler(RequestBook):
    def __init__(self, config: SchedulerConfig, decode_text: Callable[[list[int], bool], str] | None) -> None:
        """decode_text(ids, skip_special_tokens) turns token ids into text; only stop strings need it."""
        super().__init__(config, decode_text)
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._rng = random.Random(config.random_seed)
        self._decode_steps = 0  # of all turns
        self._steps_of_turn = 0  # decode steps planned in this turn
        self._planned: list[RequestState] = []  # the requests of the plan that is being made, in its order

    def plan(self) -> BatchPlan | None:
        """The next turn, numbered from 1, which must be committed before anything else; None: nothing to run."""
        self._require_no_plan("plan")
        return self._plan_turn()

    def plan_ahead(self) -> BatchPlan | None:
        """The next turn, while the last one may be open: planned as if no request ended in that. Plans must be executed
        in their order, and committed in it. None: nothing to run, or nothing before the open turn is committed."""
        if len(self._open) > 1:
            raise RuntimeError(f"plan_ahead() while two turns are open; commit turn {self._open[0].plan.turn} first")
        for turn in self._open:
            self._join(turn)
        return self._plan_turn()

    def _plan_turn(self) -> BatchPlan | None:
        self._planned = []
        self._steps_of_turn = 0
        prefill = self._plan_prefill()
        if prefill:
            planned = zip(self._planned, prefill, strict=True)
            extras = [state.row_extras() for state, seq in planned if seq.sampling is not None]
            return self._take_turn(BatchPlan(self._turn + 1, prefill, extras=[e for e in extras if e is not None]))
        if self._running:
            return self._plan_decode()
        if not self._open:
            self._ratio.reset()
        return None

    def plan_further(self) -> BatchPlan | None:
        """After a decode step was committed: one more in the same turn, whoever waits, or None: the turn is over."""
        self._require_no_plan("plan_further")
        steps = self._steps_of_turn
        if steps and self._running and self.config.rules.goes_on(steps, bool(self._chunks), self._running):
            return self._plan_decode()
        return None

    def _take_turn(self, plan: BatchPlan) -> BatchPlan:
        self._turn += 1
        self._open.append(OpenTurn(plan, self._planned))
        return plan

    def commit(
        self, plan: BatchPlan, token_ids: Sequence[int] | np.ndarray, logprobs: TurnLogprobs | None = None
    ) -> None:
        """Take in what executing `plan`, the oldest that is open, gave: plan.sampled_count() token ids in its order,
        and the log-probabilities that its rows want."""
        if not self._open or plan.turn != self._open[0].plan.turn:
            raise ValueError(f"only the oldest open plan can be committed, and once; got turn {plan.turn}")
        tokens = np.asarray(token_ids).tolist()
        if len(tokens) != plan.sampled_count():
            raise ValueError(f"turn {plan.turn} samples {plan.sampled_count()} tokens, got {len(tokens)}")
        turn = self._open.popleft()
        if self.kv.free_late():
            self._batch_full = False
        self._join(turn)
        if logprobs is not None:
            for state in turn.states:
                state.take_logprobs(logprobs)
        if plan.prefill:
            self._commit_prefill(turn, tokens)
        else:
            self._decode_steps += 1
            for state, token in zip(turn.states, tokens, strict=True):
                if state.row is not None:  # else it ended while this turn was open
                    self._append(state, token)
        if any(state.row is None for state in turn.states):
            self._running = [state for state in self._running if state.row is not None]

    def _join(self, turn: OpenTurn) -> None:
        """The part of committing a prefill that needs no token: its KV is shared, and who sampled decodes next."""
        if turn.joined:
            return
        turn.joined = True
        pairs = turn.prefilled()
        for state, _ in pairs:
            self.kv.share(state)
        self._running = self._running + [state for state, seq in pairs if seq.sample]

    def _commit_prefill(self, turn: OpenTurn, tokens: list[int]) -> None:
        sampled = iter(tokens)
        for state, seq in turn.prefilled():
            if seq.sample:
                self._append(state, next(sampled))
            elif seq.start + len(seq.input_ids) // 4 == len(state.ids) // 4:  # the last chunk: max_new_tokens is 0
                self._end(state, FinishReason("length"))

    def _append(self, state: RequestState, token: int) -> None:
        state.output.append(token)
        finish = finish_reason(state, self._decode_text)
        if finish is not None:
            self._end(state, finish)
        elif self.config.rules.streams(state, self._decode_steps):
            self._chunks.append(state.chunk())

    # ------------------------------------------------------------------ prefill

    def _plan_prefill(self) -> list[PrefillSeq]:
        if self._in_flight is None and (not self._waiting or self._batch_full):
            return []
        budget = PrefillBudget(self.config, self.kv, self._running, self._ratio.value)
        prefill: list[PrefillSeq] = []
        if self._in_flight is not None:
            state, self._in_flight = self._in_flight, None
            prefill.append(self._extend(state, budget.take(state), first=False))
        if self._waiting and not self._batch_full and self._in_flight is None:
            self._admit(budget, prefill)
        return prefill

    def _admit(self, budget: PrefillBudget, prefill: list[PrefillSeq]) -> None:
        """Add waiting requests to `prefill`, in the order of the policy, up to the first that does not fit."""
        admitted = []
        for state in order_waiting(self._waiting.values(), self.config.policy, self.kv.tree, self._rng):
            if budget.chunk_full:
                break
            if not self._free_rows:
                self._batch_full = True
                break
            self.kv.enter(state)
            if not budget.fits(state):
                self._batch_full = True
                self.kv.leave(state, keep=False)
                break
            n = budget.take(state)
            if n == 0:
                self.kv.leave(state, keep=False)
                break
            if state.cached is None:
                state.cached = state.kv_len
                self._prompt_tokens += state.prompt_len
                self._cached_tokens += state.cached
            state.row = heapq.heappop(self._free_rows)
            admitted.append(state)
            prefill.append(self._extend(state, n, first=True))
        for state in admitted:
            del self._waiting[state.rid]

    def _extend(self, state: RequestState, n: int, first: bool) -> PrefillSeq:
        """The next n tokens of the request. Cutting one short uses up the chunk: there is never a second in flight."""
        start = state.kv_len
        prefix = state.slots[:start].tobytes() if first else b""
        slots = self.kv.extend(state, n)
        if state.to_prefill:
            self._in_flight = state
        self._planned.append(state)
        return PrefillSeq(
            row=state.row,
            start=start,
            input_ids=state.ids[4 * start : 4 * (start + n)],
            new_slots=slots.tobytes(),
            prefix_slots=prefix,
            sampling=state.row_sampling() if first else None,
            sample=not state.to_prefill and state.max_new > 0,
        )

    # ------------------------------------------------------------------ decode

    def _plan_decode(self) -> BatchPlan | None:
        if self.kv.available < len(self._running):
            if self._open:  # requests may end in it; and only what is known can be computed again
                return None
            self._retract()
        else:
            self._ratio.decay()
        self._planned = running = self._running
        slots = self.kv.allocate(len(running))
        for state, slot in zip(running, slots.tolist(), strict=True):
            state.slots[state.kv_len] = slot
            state.kv_len += 1
        rows = pack_ids([state.row for state in running])
        self._steps_of_turn += 1
        return self._take_turn(BatchPlan(self._turn + 1, [], rows, slots.tobytes()))

    def _retract(self) -> None:
        """Drop requests until the others can decode 20 more tokens each, or all they may still produce: those with
        the fewest outputs first, of these the longest prompt, of these the last in the batch. One always stays: what
        the last one needs is there, as prompt + max_new_tokens fits the pool.

        Their own slots become free; what they share with the tree stays there until it is evicted. They wait in
        front of the queue, the one that had produced most first.
        """
        order = sorted(self._running, key=lambda state: (-len(state.output), state.prompt_len))
        need = sum(decode_steps(state) for state in order)
        while self.kv.available < need:
            state = order.pop()
            need -= decode_steps(state)
            self._give_up_row(state, keep=False)
            state.absorb_output()
            self._waiting[state.rid] = state
            self._waiting.move_to_end(state.rid, last=False)
            self.retraction_count += 1
        self._running = [state for state in self._running if state.row is not None]
        self._batch_full = False
        self._ratio.retracted(self._running)
