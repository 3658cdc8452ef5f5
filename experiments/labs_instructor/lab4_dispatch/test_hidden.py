"""Hidden tests of lab 4: other sizes, other seeds, and traces that are checked step by step."""

from __future__ import annotations

import numpy as np
import pytest

from common.messages import AbortRequest, StopRequest
from evolution import Engine
from experiments.labs.marks import cost, task

from . import adapters, fleet
from .messages import Finished
from .test_lab import Scripted, ask, counted_by_the_real_one, in_words, prompt, short, turn_of


@task("4a_predict")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("replicas", [2, 3, 5, 16])
def test_predictions_of_many_sizes(replicas):
    rng = np.random.default_rng(replicas)
    for _ in range(40):
        sizes = int(rng.integers(0, 200)), int(rng.integers(1, 40)), replicas
        assert adapters.backlog_counts(*sizes) == counted_by_the_real_one(*sizes), sizes
    cost(f"40 predictions for {replicas} replicas")


def first_least(loads: list[int], last: int, lost: set[int]) -> int:
    """What a rule must pick, said plainly: walk on from the one picked last, and take the first that has least."""
    least = min(load for replica, load in enumerate(loads) if replica not in lost)
    at = last
    while True:
        at = (at + 1) % len(loads)
        if at not in lost and loads[at] == least:
            return at


@task("4b_ties")
@pytest.mark.timeout(5)
@pytest.mark.parametrize("replicas", [2, 3, 7])
def test_any_backlogs_any_losses(replicas):
    rng = np.random.default_rng(replicas)
    backlogs = [0] * replicas
    rule = adapters.rotating_backlog(replicas, lambda: backlogs)
    lost: set[int] = set()
    last = -1
    for number in range(200):
        backlogs[:] = rng.integers(0, 3, replicas).tolist()
        if number in (100, 150) and len(lost) < replicas - 1:
            gone = int(rng.choice([replica for replica in range(replicas) if replica not in lost]))
            lost.add(gone)
            rule.lose(gone)
        expected = first_least(backlogs, last, lost)
        assert rule.pick(short(f"r{number}")) == expected, (number, backlogs, last, lost)
        last = expected
    cost(f"200 picks over {replicas} replicas")


@task("4b_ties")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("replicas", [2, 6])
def test_light_load_with_other_replicas(replicas):
    arrivals = fleet.one_in_eight_is_long(seed=replicas, count=60, per_second=4)
    one = fleet.Fleet(replicas)
    taken = one.run(adapters.rotating_backlog(replicas, one.backlogs), arrivals)
    cost(f"shares {in_words(taken.shares)}")
    assert max(taken.shares) < 1.4 / replicas


@task("4c_outstanding")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("replicas", [2, 5])
def test_any_trace_of_outstanding_tokens(replicas):
    rng = np.random.default_rng(10 + replicas)
    rule = adapters.outstanding_tokens(replicas)
    tokens: dict[str, tuple[int, int]] = {}
    loads, last = [0] * replicas, -1
    for number in range(300):
        if tokens and rng.random() < 0.45:
            rid = sorted(tokens)[int(rng.integers(len(tokens)))]
            replica, size = tokens.pop(rid)
            rule.finished(replica, [rid])
            loads[replica] -= size
            continue
        length, output = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        expected = first_least(loads, last, set())
        assert rule.pick(fleet.make_request(f"r{number}", [1] * length, output)) == expected, number
        tokens[f"r{number}"] = (expected, length + output)
        loads[expected] += length + output
        last = expected
        assert adapters.outstanding_of(rule) == loads
    cost(f"300 steps over {replicas} replicas")


@task("4c_outstanding")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [2, 3])
def test_long_and_short_with_other_seeds(seed):
    arrivals = fleet.one_in_eight_is_long(seed, count=120, per_second=20)
    turns = fleet.Fleet(4).run(fleet.RoundRobin(4), arrivals)
    least = fleet.Fleet(4).run(adapters.outstanding_tokens(4), arrivals)
    cost(f"virtual ms per token, 95th percentile: {least.p95:.0f}, round_robin {turns.p95:.0f}")
    assert least.p95 < turns.p95 / 2


@task("4d_controller")
@pytest.mark.timeout(10)
def test_several_reports_and_an_abort_behind_its_request():
    rule = Scripted([2, 1])
    r3, abort, r4 = short("r3"), AbortRequest(1, "r3"), short("r4")
    goes_on, sent = turn_of(rule, [Finished(2, ["r2"]), Finished(1, ["r1", "r0"])], [r3, abort, r4], [0, 1, 2])
    cost(f"{len(sent)} messages out of 3")
    assert goes_on is True
    assert sent == [(2, r3), (0, abort), (1, abort), (2, abort), (1, r4)]
    assert rule.calls == ["finished r2 on 2", "finished r1 on 1", "finished r0 on 1", "pick r3", "pick r4"]


@task("4d_controller")
@pytest.mark.timeout(10)
def test_turns_without_anything_and_with_reports_alone():
    rule = Scripted([])
    assert turn_of(rule, [], [], [0, 1]) == (True, [])
    assert turn_of(rule, [Finished(0, ["a"])], [], [0, 1]) == (True, [])
    assert rule.calls == ["finished a on 0"]


@task("4d_controller")
@pytest.mark.timeout(10)
def test_a_stop_goes_to_those_that_are_left():
    stop = StopRequest(1)
    assert turn_of(Scripted([]), [Finished(3, ["a"])], [stop], [0, 1, 3]) == (
        False,
        [(replica, stop) for replica in (0, 1, 3)],
    )
    cost("3 messages out of 1")


@task("4e_prefix")
@pytest.mark.timeout(120)
def test_conversations_in_a_real_engine_find_what_was_said():
    """Three conversations over two replicas; by turns each would meet the other's cache half of the time."""
    assert adapters.make_rule("prefix", 2, 100).pick(short("a")) == 0
    settings = {"stage": f"{__package__}.stage:launch_prefix", "device": "sim", "dp_size": 2}
    sampling = {"max_new_tokens": 2, "ignore_eos": True}
    said = {c: [10 * c + i % 7 + 1 for i in range(40)] for c in range(3)}
    found = []
    with Engine(**settings) as engine:
        for number in range(4):
            for c in (0, 1, 2):
                before = len(said[c])
                result = engine.generate(input_ids=said[c], sampling_params=sampling)
                found.append(result["meta_info"]["cached_tokens"])
                if number:
                    assert found[-1] >= before - 30, (number, c)
                said[c] = said[c] + [100 + 10 * c + number] * 30
    cost(f"cached tokens of the prompts, in their order: {found}")


@task("4e_prefix")
@pytest.mark.timeout(30)
@pytest.mark.parametrize(("seed", "replicas"), [(2, 4), (3, 3)])
def test_conversations_with_other_seeds(seed, replicas):
    arrivals = fleet.conversations(seed, count=20, rounds=8, per_second=40)
    turns = fleet.Fleet(replicas).run(fleet.RoundRobin(replicas), arrivals)
    aware = fleet.Fleet(replicas).run(adapters.prefix_aware(replicas, capacity=8192, imbalance=4096), arrivals)
    cost(f"prompt tokens found in the cache: {aware.cached:.0%}, round_robin {turns.cached:.0%}")
    assert aware.cached > 1.7 * turns.cached


@task("4e_prefix")
@pytest.mark.timeout(10)
def test_a_lost_replica_takes_its_prefixes_with_it():
    rule = adapters.prefix_aware(3, capacity=10**6, imbalance=10**6)
    homes = [ask(rule, f"a{c}", prompt(c, 30)) for c in range(3)]
    rule.lose(homes[1])
    again = [ask(rule, f"b{c}", prompt(c, 40)) for c in (1, 0, 2)]
    moved = ask(rule, "c1", prompt(1, 50))
    cost(f"homes {homes}, after the loss of {homes[1]}: {again}")
    assert again[0] != homes[1] and again[1:] == [homes[0], homes[2]]
    assert moved == again[0], "it is known where it went"


@task("4e_prefix")
@pytest.mark.timeout(10)
def test_the_longest_prefix_wins_over_the_least_load():
    rule = adapters.prefix_aware(3, capacity=10**6, imbalance=10**6)
    assert ask(rule, "short", prompt(0, 30)) == 0
    assert ask(rule, "other", prompt(1, 30)) == 1
    assert ask(rule, "fork", prompt(0, 60), ends=False, output=500) == 0
    assert ask(rule, "longer", prompt(0, 60) + prompt(3, 10)) == 0, "60 of 70 are there, however much it has to do"


@task("4f_balance")
@pytest.mark.timeout(30)
@pytest.mark.parametrize(("seed", "replicas"), [(2, 4), (5, 2)])
def test_other_hot_prompts(seed, replicas):
    arrivals = fleet.one_hot_prompt(seed, count=120, per_second=15 * replicas, shared=500)
    turns = fleet.Fleet(replicas).run(fleet.RoundRobin(replicas), arrivals)
    aware = fleet.Fleet(replicas).run(adapters.prefix_aware(replicas, capacity=8192, imbalance=2000), arrivals)
    cost(f"shares {in_words(aware.shares)}; 95th percentile {aware.p95 / turns.p95:.2f} of round_robin's")
    assert max(aware.shares) < (0.8 if replicas == 2 else 0.5)
    assert aware.p95 < 1.5 * turns.p95


@task("4f_balance")
@pytest.mark.timeout(10)
def test_other_bounds():
    rule = adapters.prefix_aware(3, capacity=10**6, imbalance=75)
    picked = [ask(rule, f"r{i}", prompt(0, 20), ends=False, output=5) for i in range(8)]
    cost(f"25 tokens each, at most 75 apart: {picked}")
    assert picked == [0, 0, 0, 0, 1, 2, 1, 2]


@task("4f_balance")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("capacity", [100, 333])
def test_mirrors_of_other_capacities(capacity):
    """Conversations that share their beginnings, so that edges are split."""
    rng = np.random.default_rng(capacity)
    rule = adapters.prefix_aware(3, capacity=capacity, imbalance=10**6)
    for number in range(150):
        c, length, own = int(rng.integers(5)), int(rng.integers(1, 60)), int(rng.integers(1, 30))
        ask(rule, f"r{number}", prompt(c, length) + prompt(100 + number, own), output=1)
        assert max(adapters.known_tokens(rule)) <= capacity
    cost(f"150 prompts, {adapters.known_tokens(rule)} tokens believed to be cached")
    assert sum(adapters.known_tokens(rule)) > capacity
