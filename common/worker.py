"""One rank's engine: the scheduler that plans and the runner that executes, behind a few calls.

```
 plan(messages) -> plan      take the requests in, decide what to run         Scheduler, pure CPU
 execute(plan)  -> sampled   one forward, one sample           ModelRunner or SimRunner, all ranks together
 commit(plan, sampled)       append, finish, cache; outputs wait in `output()`
 plan_further() -> plan      the next decode step of the same turn, where a turn has several (`common.turn`)
 step(messages) -> output    all of them
 plan_ahead(messages)        for a loop that executes on a thread of its own: the turn after one not yet committed
```

With `--scheduling replicated` every rank calls `step` with the same messages. With `rank0` only rank 0 plans and
commits; the others are sent its plan and only execute it: they hold no scheduler at all.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import torch

from common.args import EngineArgs
from common.batch import BatchPlan, Sampled
from common.digest import PlanDigest
from common.faults import in_worker, of_rank
from common.messages import (
    AbortRequest,
    ControlOut,
    ControlReply,
    FlushRequest,
    GenerateRequest,
    LoadReport,
    Request,
    StatsRequest,
    StopRequest,
    TokenBatch,
    TurnOutput,
)
from common.models.config import ModelConfig, load_config
from common.parallel.group import GroupSpec, join
from common.processes import Slot
from common.ranks import rank_label, threads_per_rank
from common.runner import ModelRunner
from common.scheduler import Scheduler, SchedulerConfig
from common.sim.profiles import load_profile
from common.sim.runner import SimRunner
from common.tokenizer import Tokenizer
from common.tracing import NO_TRACE, NoTrace, Trace
from common.turn import ONE_STEP, TurnRules

logger = logging.getLogger(__name__)

LOAD_REPORT_INTERVAL = 0.1
DECODE_LOG_INTERVAL = 40  # turns; 0.4.0's default


class DivergenceError(RuntimeError):
    """The ranks planned different batches: the next collective would have hung or mixed up requests."""


class Worker:
    def __init__(
        self,
        args: EngineArgs,
        replica: int,
        rank: int,
        group: GroupSpec | None,
        rules: TurnRules = ONE_STEP,
        trace: Trace | NoTrace = NO_TRACE,
        slot: Slot | None = None,
    ) -> None:
        """Loads the model shard of `rank` (not on sim) and meets the other ranks of `group` (None: a single rank).

        `rules` without their stream interval, which `args` has. `trace`: of the thread that runs the turns. `slot`: the
        process's line on the board (`ChildContext.slot`), where a hang of this rank can be seen.
        """
        self.trace = trace
        self._slot = slot or Slot()
        self._slot.is_rank(replica, rank)
        faults = of_rank(args, rank_label(args, replica, rank)) if args.fault else []
        self.replica = replica
        self.rank = rank
        config = load_config(args.model_path)
        self.tp = join(group, rank, self._slot.beat)
        # The budget is the minimum over the ranks, so that all of them admit and retract alike.
        total = min(self.tp.all_gather_ints(args.max_total_tokens))
        self.runner = self._make_runner(args, config, total)
        plans = args.scheduling == "replicated" or rank == 0
        rules = dataclasses.replace(rules, stream_interval=args.stream_interval)
        self.scheduler = self._make_scheduler(args, config, total, rules) if plans else None
        self.loop_counts = {"loop_turns": 0}  # what the stage's loop did; it may add counts of its own
        self.info: dict[str, int | str] = {"max_total_tokens": total}
        if args.device == "cuda" and not self.tp.capturable:
            self.info["note"] = "ranks share a GPU: their collectives go through gloo, and there are no CUDA graphs"
        self._check_every = args.check_divergence
        self._digest = PlanDigest()
        self._control: list[ControlOut] = []
        self._stop = False
        self._finished_before = 0
        self._next_load_report = 0.0
        self._levels = (-1, -1)
        if faults:
            in_worker(self, faults)

    def _make_runner(self, args: EngineArgs, config: ModelConfig, total: int) -> ModelRunner | SimRunner:
        if args.device == "sim":
            eos = set(config.eos_token_ids)
            return SimRunner(
                load_profile(args.sim_profile),
                self.tp,
                [id for id in Tokenizer(args.model_path).plain_ids() if id < config.vocab_size and id not in eos],
                max_running_requests=args.max_running_requests,
                launch_us=args.sim_launch_us,
                trace=self.trace,
            )
        torch.set_num_threads(threads_per_rank(args))
        return ModelRunner(
            config,
            self.tp,
            max_running_requests=args.max_running_requests,
            context_length=args.context_length,
            max_total_tokens=total,
            dtype=args.dtype,
            device=args.device,
            packed=not args.disable_packed_linear,
            graphs=not args.disable_cuda_graph,
            trace=self.trace,
            loaded_layer=self._slot.beat,
        )

    @staticmethod
    def _make_scheduler(args: EngineArgs, config: ModelConfig, total: int, rules: TurnRules) -> Scheduler:
        scheduler_config = SchedulerConfig(
            max_total_tokens=total,
            max_running_requests=args.max_running_requests,
            context_length=args.context_length,
            chunked_prefill_size=args.chunked_prefill_size,
            max_prefill_tokens=args.max_prefill_tokens,
            policy=args.schedule_policy,
            radix=not args.disable_radix_cache,
            eos_token_ids=config.eos_token_ids,
            rules=rules,
            schedule_conservativeness=args.schedule_conservativeness,
            random_seed=args.random_seed,
        )
        return Scheduler(scheduler_config, Tokenizer(args.model_path).decode)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do: while False, the loop may block until a message arrives."""
        return self.scheduler.has_work

    @property
    def stopping(self) -> bool:
        return self._stop

    # ------------------------------------------------------------------ the turn

    def step(self, messages: list[Request]) -> TurnOutput:
        """One whole turn on a rank that plans for itself."""
        plan = self.plan(messages)
        while plan is not None:
            self.commit(plan, self.execute(plan))
            plan = self.plan_further()
        return self.output()

    def plan(self, messages: list[Request]) -> BatchPlan | None:
        """Take the messages in, in order, and decide what this turn runs; None when there is nothing to run."""
        self._take_in(messages)
        return None if self._stop else self.scheduler.plan()

    def plan_ahead(self, messages: list[Request]) -> BatchPlan | None:
        """`plan` while the plan before this one may not be committed yet; None also when that has to come first.
        Control messages need a scheduler whose plans are all committed."""
        self._take_in(messages)
        return None if self._stop else self.scheduler.plan_ahead()

    def _take_in(self, messages: list[Request]) -> None:
        self.loop_counts["loop_turns"] += 1
        self._slot.begin_turn(len(messages))
        self.trace.part("process_input_requests")
        for message in messages:
            self._process(message)
        self.trace.part("get_next_batch_to_run")

    def plan_further(self) -> BatchPlan | None:
        """After `commit`: the next decode step of the same turn; None: the turn is over."""
        self.trace.part("get_next_batch_to_run")
        return self.scheduler.plan_further()

    def execute(self, plan: BatchPlan) -> Sampled:
        """One forward and one sample on this rank's shard. Every rank must execute the same plans in the same order.
        A thread of its own may call it: what it changes is the runner's, of which the other calls only read counts
        (StatsRequest), each a number of its own."""
        if self._check_every:
            self._digest.update(plan)
            if plan.turn % self._check_every == 0:
                self._compare_digests(plan.turn)
        if plan.prefill:
            self.runner.trace.count("prefills", len(plan.prefill))
        self._slot.beat()
        sampled = self.runner.execute(plan)
        self._slot.beat()
        return sampled

    def commit(self, plan: BatchPlan, sampled: Sampled) -> None:
        """Take in what `execute` gave; what comes of it waits in `output()`."""
        self.trace.part("process_batch_result")
        self.scheduler.commit(plan, sampled.ids, sampled.logprobs)
        if self.rank == 0:
            self._log(plan)

    def output(self) -> TurnOutput:
        """What has come out since the last call."""
        self.trace.part("send_output")
        if self.trace.on:
            self._trace_levels()
        chunks = self.scheduler.take_chunks()
        control, self._control = self._control, []
        if self.rank == 0:
            control += self._load_report()
        finished = self.scheduler.finished_count - self._finished_before
        self._finished_before = self.scheduler.finished_count
        tokens = TokenBatch(self.replica, chunks, last=self._stop) if chunks or self._stop else None
        self._slot.end_turn(self.busy, batches=tokens is not None)
        return TurnOutput(tokens, control, finished, self.busy, self._stop)

    def _trace_levels(self) -> None:
        """Where they have changed."""
        levels = (self.scheduler.running_count, self.scheduler.waiting_count)
        if levels != self._levels:
            self._levels = levels
            self.trace.count("running", levels[0])
            self.trace.count("waiting", levels[1])

    def close(self) -> None:
        self.tp.close()

    # ------------------------------------------------------------------ messages

    def _process(self, message: Request) -> None:
        if isinstance(message, GenerateRequest):
            self.trace.request("received", message.rid)
            self.scheduler.add(message)
        elif isinstance(message, AbortRequest):
            found = self.scheduler.abort(message.rid)
            self._reply(message.id, found, {} if found else {"reason": f"no request {message.rid} here"})
        elif isinstance(message, FlushRequest):
            ok, detail = self.scheduler.flush()
            self._reply(message.id, ok, {"reason": detail} if detail else {})
        elif isinstance(message, StatsRequest):
            self._reply(message.id, True, self.scheduler.stats() | self.loop_counts | self.runner.counts())
        elif isinstance(message, StopRequest):
            self._stop = True
            self._reply(message.id, True, {})

    def _reply(self, control_id: int, ok: bool, detail: dict) -> None:
        self._control.append(ControlReply(control_id, self.replica, ok, detail))

    def _log(self, plan: BatchPlan) -> None:
        if not logger.isEnabledFor(logging.INFO) or not (plan.prefill or plan.turn % DECODE_LOG_INTERVAL == 0):
            return
        stats = self.scheduler.stats()
        state = "#running-req: {running}, #queue-req: {waiting}, #free-token: {free_tokens}".format(**stats)
        if plan.prefill:
            new = sum(len(seq.input_ids) // 4 for seq in plan.prefill)
            logger.info("Prefill batch. #new-seq: %d, #new-token: %d, %s", len(plan.prefill), new, state)
        else:
            logger.info("Decode batch (each %dth turn is logged). %s", DECODE_LOG_INTERVAL, state)

    def _load_report(self) -> list[LoadReport]:
        """The only clock here; it decides nothing but whether figures are published."""
        now = time.monotonic()
        if now < self._next_load_report and self.busy:  # what an idle engine said last holds until it works again
            return []
        self._next_load_report = now + LOAD_REPORT_INTERVAL
        stats = self.scheduler.stats()
        return [
            LoadReport(
                self.replica,
                waiting=stats["waiting"],
                running=stats["running"],
                free_tokens=stats["free_tokens"],
                evictable_tokens=stats["evictable_tokens"],
            )
        ]

    def _compare_digests(self, turn: int) -> None:
        digests = self.tp.all_gather_ints(self._digest.value)
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise DivergenceError(
                f"turn {turn}: rank(s) {', '.join(map(str, different))} planned another batch than rank 0"
            )
