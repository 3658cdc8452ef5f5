"""Any mix of requests, aborts and pressure: every request gets its tokens, once, and every slot has one owner."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from common.messages import GenerateRequest, SamplingParams, pack_ids
from common.policy import POLICIES
from common.scheduler import Scheduler, SchedulerConfig
from common.turn import TurnRules
from tests.unit.fake_executor import (
    EOS,
    VOCAB,
    Collected,
    FakeExecutor,
    check_accounts,
    expected_tokens,
    tree_nodes,
)

# Prompts are beginnings of a few texts with a few ends, so that prefixes are shared, in part and in full.
TEXTS = [[random.Random(i).randrange(VOCAB) for _ in range(40)] for i in range(3)]
TEXTS.append(TEXTS[0][:11] + TEXTS[1][11:])


class AnyTraffic(RuleBasedStateMachine):
    @initialize(
        pool=st.integers(12, 70),
        rows=st.integers(1, 6),
        context=st.integers(10, 60),
        chunk=st.sampled_from([-1, 1, 3, 8, 20]),
        prefill=st.sampled_from([1, 10, 16384]),
        policy=st.sampled_from(POLICIES),
        radix=st.booleans(),
        conservativeness=st.sampled_from([0.001, 0.3, 1.0]),
        interval=st.integers(1, 3),
    )
    def start(self, pool, rows, context, chunk, prefill, policy, radix, conservativeness, interval):
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_total_tokens=pool,
                max_running_requests=rows,
                context_length=context,
                chunked_prefill_size=chunk,
                max_prefill_tokens=prefill,
                policy=policy,
                radix=radix,
                eos_token_ids=(EOS,),
                rules=TurnRules(stream_interval=interval),
                schedule_conservativeness=conservativeness,
            ),
            None,
        )
        self.limit = min(pool, context)
        self.executor = FakeExecutor()
        self.collected = Collected()
        self.requests: dict[str, GenerateRequest] = {}
        self.aborted: set[str] = set()
        self.spy_on_allocate()

    def spy_on_allocate(self):
        kv = self.scheduler.kv
        allocate = kv.allocate

        def checked(n):
            free, total = kv.pool.available, kv.tree.total if kv.tree else 0
            sizes = {node.serial: len(node.slots) for node in tree_nodes(self.scheduler)}
            slots = allocate(n)
            evicted = total - (kv.tree.total if kv.tree else 0)
            if evicted:
                left = {node.serial for node in tree_nodes(self.scheduler)}
                dropped = [size for serial, size in sizes.items() if serial not in left]
                assert evicted - (n - free) < max(dropped), "evicted more than was missing, in whole nodes"
            return slots

        kv.allocate = checked

    @rule(
        text=st.sampled_from(TEXTS),
        length=st.integers(1, 40),
        end=st.lists(st.integers(0, VOCAB - 1), max_size=3),
        max_new=st.integers(0, 40),
        seed=st.integers(0, 3),
        ignore_eos=st.booleans(),
        stream=st.booleans(),
        copies=st.sampled_from([1, 1, 1, 3]),
    )
    def add(self, text, length, end, max_new, seed, ignore_eos, stream, copies):
        ids = (text[:length] + end)[: self.limit]
        for _ in range(copies):
            rid = f"r{len(self.requests)}"
            sampling = SamplingParams(max_new_tokens=max_new, seed=seed, ignore_eos=ignore_eos, stop_token_ids=(3,))
            self.requests[rid] = GenerateRequest(rid, pack_ids(ids), sampling, stream)
            self.scheduler.add(self.requests[rid])

    def settle(self):
        """Whatever is planned is committed."""

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.settle()
        rid = data.draw(st.sampled_from(sorted(self.requests)))
        if self.scheduler.abort(rid):
            self.aborted.add(rid)
            check_accounts(self.scheduler)

    @rule(n=st.integers(1, 8))
    def turns(self, n):
        for _ in range(n):
            self.turn()

    @rule()
    def flush(self):
        self.settle()
        assert self.scheduler.flush()[0] is not self.scheduler.has_work

    def turn(self) -> bool:
        scheduler = self.scheduler
        running = scheduler.running_count
        plan = scheduler.plan()
        assert (plan is None) is not scheduler.has_work, "something waits or runs and nothing is planned"
        if plan is not None:
            check_accounts(scheduler)
            config = scheduler.config
            sizes = [len(seq.input_ids) // 4 for seq in plan.prefill]
            assert sum(sizes) <= max(config.max_prefill_tokens, *sizes[:1], 0)
            assert config.chunked_prefill_size == -1 or sum(sizes) <= config.chunked_prefill_size
            assert running == 0 or scheduler.running_count >= 1, "retraction leaves one"
            scheduler.commit(plan, self.executor.execute(plan))
            check_accounts(scheduler)
        self.collected.take(scheduler)
        return plan is not None

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        turns = 0
        while self.turn():
            turns += 1
            assert turns < 20_000, "no progress"
        stats = self.scheduler.stats()
        assert stats["free_tokens"] + stats["evictable_tokens"] == self.scheduler.config.max_total_tokens
        assert stats["finished"] == len(self.requests) == len(self.collected.chunks)
        for rid, request in self.requests.items():
            expected = expected_tokens(
                request, min(request.sampling.max_new_tokens, self.limit - len(request.input_ids) // 4)
            )
            got, finish = self.collected.ids[rid], self.collected.finish(rid)
            assert finish is not None
            if rid in self.aborted:
                assert finish.type == "abort"
                assert got == expected[: len(got)]
            else:
                assert got == expected
                ended = got and got[-1] in ((3,) if request.sampling.ignore_eos else (3, EOS))
                assert (finish.type, finish.matched) == (("stop", got[-1]) if ended else ("length", None))


AnyTraffic.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=25)
TestAnyTraffic = AnyTraffic.TestCase
