"""Planning one turn ahead of the tokens gives every request the tokens that planning with them gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import GenerateRequest, SamplingParams, pack_ids
from common.scheduler import Scheduler, SchedulerConfig
from tests.unit.fake_executor import EOS, Collected, FakeExecutor, check_accounts, expected_tokens, take_turn
from tests.unit.test_scheduler_invariants import TEXTS, AnyTraffic


class Overlap:
    """What the loop does: launch the next turn, then commit the one before."""

    def __init__(self, scheduler: Scheduler, executor: FakeExecutor) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.launched = None  # (plan, its tokens)
        self.sizes: list[int] = []  # rows of each decode step

    def turn(self) -> bool:
        """Whether anything was done."""
        plan = self.scheduler.plan_ahead()
        check_accounts(self.scheduler)
        launched = None
        if plan is not None:
            self.sizes.append(len(plan.decode_rows) // 4)
            launched = (plan, self.executor.execute(plan))
        worked = plan is not None or self.launched is not None
        self.settle()
        self.launched = launched
        return worked

    def settle(self) -> None:
        if self.launched is not None:
            self.scheduler.commit(*self.launched)
            self.launched = None
            check_accounts(self.scheduler)


class AnyTrafficAhead(AnyTraffic):
    """The same requests, aborts and pressure."""

    def turn(self) -> bool:
        if not hasattr(self, "loop"):
            self.loop = Overlap(self.scheduler, self.executor)
        busy = self.scheduler.has_work
        worked = self.loop.turn()
        assert worked is busy
        self.collected.take(self.scheduler)
        return worked

    def settle(self):
        if hasattr(self, "loop"):
            self.loop.settle()


AnyTrafficAhead.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=25)
TestAnyTrafficAhead = AnyTrafficAhead.TestCase

REQUEST = st.tuples(
    st.sampled_from(TEXTS),
    st.integers(1, 20),  # prompt
    st.integers(0, 20),  # max_new_tokens
    st.integers(0, 3),  # seed
    st.integers(0, 6),  # turns until the next one arrives
    st.sampled_from([(), (" 17",), (" 3 ", "9 4")]),
)


@settings(deadline=None, max_examples=200)
@given(
    drawn=st.lists(REQUEST, min_size=1, max_size=12),
    pool=st.integers(40, 90),
    chunk=st.sampled_from([-1, 3, 16]),
    radix=st.booleans(),
    conservativeness=st.sampled_from([0.001, 1.0]),
)
def test_the_same_tokens_and_the_same_ends_as_the_normal_loop(drawn, pool, chunk, radix, conservativeness):
    def play(overlap: bool) -> dict:
        scheduler = make(
            max_total_tokens=pool,
            chunked_prefill_size=chunk,
            radix=radix,
            schedule_conservativeness=conservativeness,
        )
        executor, collected = FakeExecutor(), Collected()
        loop = Overlap(scheduler, executor)
        turn = loop.turn if overlap else lambda: take_turn(scheduler, executor) is not None
        for index, (text, length, max_new, seed, pause, stop) in enumerate(drawn):
            sampling = SamplingParams(max_new_tokens=max_new, seed=seed, stop=stop)
            scheduler.add(GenerateRequest(f"r{index}", pack_ids(text[:length]), sampling, stream=True))
            for _ in range(pause):
                turn()
        while turn():
            pass
        collected.take(scheduler)
        assert not scheduler.has_work
        return {rid: (ids, collected.finish(rid)) for rid, ids in collected.ids.items()}

    normal = play(overlap=False)
    assert len(normal) == len(drawn)
    assert play(overlap=True) == normal


def make(**config) -> Scheduler:
    defaults = {
        "max_total_tokens": 100,
        "max_running_requests": 4,
        "context_length": 100,
        "chunked_prefill_size": -1,
        "policy": "fcfs",
        "radix": True,
        "eos_token_ids": (EOS,),
    }
    return Scheduler(SchedulerConfig(**defaults | config), lambda ids, skip: "".join(f" {id} " for id in ids))


def request(rid: str, length: int, prompt: int = 5, **sampling) -> GenerateRequest:
    """Nothing ends it but its length, unless `sampling` says so."""
    params = SamplingParams(**{"max_new_tokens": length, "seed": len(rid), "ignore_eos": True} | sampling)
    return GenerateRequest(rid, pack_ids(range(prompt)), params, stream=True)


def test_who_ends_is_computed_one_step_too_far_and_its_slot_is_freed_after_that():
    """By its length too, as in 0.4.0; the normal loop takes two decode steps for three tokens."""
    scheduler = make()
    loop = Overlap(scheduler, FakeExecutor())
    scheduler.add(request("a", 3))
    assert [loop.turn() for _ in range(3)] == [True] * 3
    assert loop.sizes == [0, 1, 1]
    loop.turn()  # launches one step too far, and commits the step that ends it
    assert loop.sizes == [0, 1, 1, 1]
    (chunk,) = [chunk for chunk in scheduler.take_chunks() if chunk.finish]
    assert chunk.finish.type == "length"
    assert scheduler.running_count == 0 and scheduler.has_work
    free, cached = scheduler.kv.pool.available, scheduler.kv.evictable
    assert (free, cached) == (92, 7), "the slot of the step too far is neither free nor in the tree"
    assert loop.turn()
    assert (scheduler.kv.pool.available, scheduler.kv.evictable) == (93, 7)
    assert not scheduler.has_work and not loop.turn()


def test_the_slot_of_a_step_too_far_may_be_what_the_next_request_lacks():
    """It is turned away while that step is open, and let in once it is committed, though nobody ends there."""
    scheduler = make(max_total_tokens=20, max_running_requests=2)
    loop = Overlap(scheduler, FakeExecutor())
    whole = request("whole", 10, prompt=10)
    scheduler.add(request("a", 3))
    scheduler.add(whole)
    collected = Collected()
    while loop.turn():
        pass
    collected.take(scheduler)
    assert collected.ids["whole"] == expected_tokens(whole, 10)


def test_a_pool_that_has_run_dry_waits_for_the_open_turn_and_then_retracts():
    scheduler = make(max_total_tokens=24, schedule_conservativeness=0.001, radix=False)
    loop = Overlap(scheduler, FakeExecutor())
    requests = [request("a", 12), request("bb", 12)]
    for one in requests:  # the second comes later: of those that a turn takes in, all that they may need is kept free
        scheduler.add(one)
        loop.turn()
    collected = Collected()
    waited = 0
    while loop.turn():
        waited += loop.launched is None
    collected.take(scheduler)
    assert scheduler.retraction_count == 1
    assert waited >= 2, "once when the pool was dry, and once at the end"
    assert collected.ids == {one.rid: expected_tokens(one, 12) for one in requests}


def test_two_turns_may_be_open_and_are_committed_in_their_order():
    scheduler = make()
    scheduler.add(request("a", 8))
    first, second = scheduler.plan_ahead(), scheduler.plan_ahead()
    with pytest.raises(RuntimeError, match="two turns are open"):
        scheduler.plan_ahead()
    with pytest.raises(RuntimeError, match="not committed"):
        scheduler.abort("a")
    with pytest.raises(ValueError, match="only the oldest open plan"):
        scheduler.commit(second, [1])
    scheduler.commit(first, [1])
    scheduler.commit(second, [2])
    assert [chunk.new_ids for chunk in scheduler.take_chunks()] == [[1], [2]]


def test_no_flush_while_a_turn_is_open():
    """The last request has ended, and the step too far still writes its slot: a flush would free it a second time."""
    scheduler = make()
    loop = Overlap(scheduler, FakeExecutor())
    scheduler.add(request("a", 3))
    while scheduler.running_count or scheduler.waiting_count:
        loop.turn()
    assert scheduler.has_work
    with pytest.raises(RuntimeError, match=r"flush\(\) while turn 4 is not committed"):
        scheduler.flush()
    loop.settle()
    assert scheduler.flush() == (True, "")
    assert scheduler.kv.pool.available == 100
    check_accounts(scheduler)
