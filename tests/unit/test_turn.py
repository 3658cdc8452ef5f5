"""Turns of several decode steps, and which tokens are streamed: the rules of each version."""

from __future__ import annotations

import pytest

from common.messages import GenerateRequest, SamplingParams, pack_ids
from common.scheduler import Scheduler, SchedulerConfig
from common.turn import TurnRules
from evolution.broadcast_controller.constants import V0_2_0
from evolution.peer_schedulers.constants import V0_4_0
from evolution.rpyc_router.constants import V0_1_5, V0_1_17


def make(rules: TurnRules) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            max_total_tokens=1000,
            max_running_requests=8,
            context_length=500,
            chunked_prefill_size=-1,
            policy="lpm",
            radix=True,
            eos_token_ids=(),
            rules=rules,
        ),
        None,
    )


def request(rid: str, stream: bool, length: int) -> GenerateRequest:
    return GenerateRequest(rid, pack_ids([1, 2, 3]), SamplingParams(max_new_tokens=length), stream)


def turn(scheduler: Scheduler) -> tuple[int, list[int]]:
    """One turn: how many plans it took, and the sizes of the chunks that came out."""
    plan, plans = scheduler.plan(), 0
    while plan is not None:
        plans += 1
        scheduler.commit(plan, [9] * plan.sampled_count())
        plan = scheduler.plan_further()
    return plans, [len(chunk.new_ids) for chunk in scheduler.take_chunks()]


def turns(rules: TurnRules, *requests: GenerateRequest) -> list[tuple[int, list[int]]]:
    scheduler = make(rules)
    for one in requests:
        scheduler.add(one)
    result = []
    while scheduler.has_work:
        result.append(turn(scheduler))
    return result


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        # 0.1.5: ten steps a turn, a chunk every second step of the engine, five in a burst.
        (V0_1_5, [(1, [1]), (10, [2] * 5), (10, [2] * 5), (10, [2] * 5), (1, [1])]),
        # 0.1.17: the first token at once; a turn ends with the first output, which every eighth step brings.
        (V0_1_17, [(1, [1]), (8, [8]), (8, [8]), (8, [8]), (7, [7])]),
        # 0.2.0 and 0.4.0: output in every step, so one step a turn.
        (V0_2_0, [(1, [1])] * 32),
        (V0_4_0, [(1, [1])] * 32),
    ],
)
def test_a_streaming_request_alone(constants, expected):
    assert turns(constants.rules, request("r", True, 32)) == expected


@pytest.mark.parametrize(
    ("constants", "steps"), [(V0_1_5, [1, 10, 1]), (V0_1_17, [1, 10, 1]), (V0_2_0, [1, 10, 1]), (V0_4_0, [1] * 12)]
)
def test_without_streaming_a_turn_takes_all_its_steps(constants, steps):
    assert turns(constants.rules, request("r", False, 12)) == [(n, []) for n in steps[:-1]] + [(steps[-1], [12])]


@pytest.mark.parametrize(
    ("early_stop", "first_decode_turn"), [("never", 10), ("first_streams", 10), ("any_streams", 1)]
)
def test_who_ends_a_turn_early(early_stop, first_decode_turn):
    """The first request of the batch does not stream, the second does: output in every step."""
    rules = TurnRules(decode_steps=10, early_stop=early_stop)
    plans = [n for n, _ in turns(rules, request("a", False, 40), request("b", True, 40))]
    assert plans[:2] == [1, first_decode_turn]


def test_a_newcomer_waits_for_the_end_of_the_turn():
    scheduler = make(V0_2_0.rules)
    scheduler.add(request("a", False, 40))
    assert turn(scheduler) == (1, [])
    plan = scheduler.plan()
    scheduler.add(request("b", False, 40))
    plans = 0
    while plan is not None:
        assert not plan.prefill
        plans += 1
        scheduler.commit(plan, [9] * plan.sampled_count())
        plan = scheduler.plan_further()
    assert plans == 10
    assert scheduler.plan().prefill


def test_a_prefill_is_a_turn_of_its_own():
    scheduler = make(V0_1_5.rules)
    scheduler.add(request("a", False, 40))
    scheduler.commit(scheduler.plan(), [9])
    assert scheduler.plan_further() is None


def test_a_turn_ends_when_nothing_runs_any_more():
    scheduler = make(V0_1_5.rules)
    scheduler.add(request("a", False, 4))
    assert turn(scheduler) == (1, [])
    assert turn(scheduler) == (3, [4])
