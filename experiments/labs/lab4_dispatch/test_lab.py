"""Public tests of lab 4. Times are virtual (`fleet.py`), so every figure is the same on every machine."""

from __future__ import annotations

import pytest

from common.dispatch import BacklogDispatcher
from common.messages import AbortRequest, FlushRequest, StatsRequest, StopRequest
from evolution import Engine
from experiments.labs.marks import cost, task

from . import adapters, fleet
from .messages import Finished


def short(rid: str, prompt: int = 8, output: int = 8):
    return fleet.make_request(rid, list(range(1, prompt + 1)), output)


class Scripted:
    """A rule that picks what it was told to, and writes down what it is asked."""

    def __init__(self, picks: list[int]) -> None:
        self.picks = iter(picks)
        self.calls: list[str] = []

    def pick(self, request) -> int:
        self.calls.append(f"pick {request.rid}")
        return next(self.picks)

    def finished(self, replica: int, rids: list[str]) -> None:
        self.calls += [f"finished {rid} on {replica}" for rid in rids]


def turn_of(rule, reports: list, messages: list, alive: list[int]) -> tuple[bool, list[tuple[int, object]]]:
    """Whether the loop goes on, and what was sent to whom."""
    sent: list[tuple[int, object]] = []
    goes_on = adapters.controller_turn(
        rule, reports, messages, lambda replica, message: sent.append((replica, message)), alive
    )
    return goes_on, sent


def in_words(shares: list[float]) -> str:
    return " ".join(f"{share:.0%}" for share in shares)


# ---------------------------------------------------------------------- 1: the tie bug


def counted_by_the_real_one(requests: int, per_step: int, replicas: int) -> list[int]:
    """The project's era dispatcher, with queues that every replica drains after each `per_step` requests."""
    backlogs = [0] * replicas
    dispatcher = BacklogDispatcher("shortest_queue", replicas, lambda: backlogs)
    counts = [0] * replicas
    for number in range(requests):
        if number % per_step == 0:
            backlogs[:] = [0] * replicas
        replica = dispatcher.pick()
        backlogs[replica] += 1
        counts[replica] += 1
    return counts


@task("4a_predict")
@pytest.mark.timeout(10)
@pytest.mark.parametrize(("requests", "per_step", "replicas"), [(100, 1, 4), (100, 2, 4), (96, 4, 4), (103, 6, 4)])
def test_the_predicted_counts_are_those_of_the_era_dispatcher(requests, per_step, replicas):
    predicted = adapters.backlog_counts(requests, per_step, replicas)
    real = counted_by_the_real_one(requests, per_step, replicas)
    cost(f"{per_step} a step over {replicas} replicas: {real}, so replica 0 has {real[0] / requests:.0%}")
    assert predicted == real


@task("4b_ties")
@pytest.mark.timeout(10)
def test_ties_are_settled_in_rotation():
    rule = adapters.rotating_backlog(4, lambda: [0, 0, 0, 0])
    picked = [rule.pick(short(f"r{i}")) for i in range(8)]
    cost(f"8 ties: {picked}")
    assert picked == [0, 1, 2, 3, 0, 1, 2, 3]


@task("4b_ties")
@pytest.mark.timeout(10)
def test_the_rotation_goes_on_behind_the_replica_that_was_picked():
    """Not behind the place where the last look began: 1 has a backlog, so 2 is picked, and 3 comes next."""
    backlogs = [0, 0, 0, 0]
    rule = adapters.rotating_backlog(4, lambda: backlogs)
    assert rule.pick(short("a")) == 0
    backlogs[:] = [1, 1, 0, 0]
    assert rule.pick(short("b")) == 2
    backlogs[:] = [0, 0, 0, 0]
    picked = [rule.pick(short("c")), rule.pick(short("d"))]
    cost(f"after 0 and 2: {picked}")
    assert picked == [3, 0]


@task("4b_ties")
@pytest.mark.timeout(5)
def test_when_every_queue_holds_something_the_shortest_is_taken():
    rule = adapters.rotating_backlog(3, lambda: [3, 1, 2])
    picked = [rule.pick(short(f"r{i}")) for i in range(3)]
    cost(f"queues of 3, 1 and 2: {picked}")
    assert picked == [1, 1, 1]


@task("4b_ties")
@pytest.mark.timeout(30)
def test_under_light_load_the_bug_feeds_one_replica_and_rotation_all():
    """5 requests a second, which a fraction of one replica could serve: the fleet's own work, in virtual time."""
    arrivals = fleet.one_in_eight_is_long(seed=1, count=100, per_second=5)
    plain, mended = fleet.Fleet(4), fleet.Fleet(4)
    bug = plain.run(fleet.Backlog(4, plain.backlogs), arrivals)
    mend = mended.run(adapters.rotating_backlog(4, mended.backlogs), arrivals)
    cost(f"shares with the bug {in_words(bug.shares)}, mended {in_words(mend.shares)}")
    assert bug.shares[0] > 0.8, "the bug itself, so that there is something to mend"
    assert max(mend.shares) < 0.35


# ---------------------------------------------------------------------- 2: outstanding work


@task("4c_outstanding")
@pytest.mark.timeout(10)
def test_what_is_outstanding_is_prompt_and_output_tokens_until_the_request_ends():
    rule = adapters.outstanding_tokens(2)
    assert rule.pick(short("long", prompt=100, output=50)) == 0
    assert [rule.pick(short(f"s{i}", prompt=10, output=5)) for i in range(3)] == [1, 1, 1]
    assert adapters.outstanding_of(rule) == [150, 45]
    rule.finished(1, ["s0", "s2"])
    assert adapters.outstanding_of(rule) == [150, 15]
    rule.finished(0, ["long"])
    rule.finished(1, ["s1"])
    cost("4 requests: 150 and 45 tokens outstanding at most, 0 at the end")
    assert adapters.outstanding_of(rule) == [0, 0]


@task("4c_outstanding")
@pytest.mark.timeout(10)
def test_ties_of_outstanding_work_are_settled_in_rotation():
    """Each ends before the next one comes, so all replicas are always equal."""
    rule = adapters.outstanding_tokens(4)
    picked = []
    for i in range(12):
        picked.append(rule.pick(short(f"r{i}")))
        rule.finished(picked[-1], [f"r{i}"])
    cost(f"12 ties: {picked}")
    assert picked == [0, 1, 2, 3] * 3


@task("4c_outstanding")
@pytest.mark.timeout(10)
def test_a_lost_replica_is_picked_no_more():
    rule = adapters.outstanding_tokens(3)
    first = [rule.pick(short(f"a{i}")) for i in range(3)]
    rule.lose(1)
    later = [rule.pick(short(f"b{i}", output=100)) for i in range(4)]
    rule.finished(1, ["a1"])  # sent before it was lost
    cost(f"before {first}, after the loss of 1 {later}")
    assert first == [0, 1, 2]
    assert later == [0, 2, 0, 2]


@task("4c_outstanding")
@pytest.mark.timeout(60)
def test_short_requests_do_not_wait_behind_long_ones():
    """One request in eight is 40 times as long. The bound of a half is wide: the reference is below a quarter."""
    arrivals = fleet.one_in_eight_is_long(seed=1, count=100, per_second=20)
    turns = fleet.Fleet(4).run(fleet.RoundRobin(4), arrivals)
    least = fleet.Fleet(4).run(adapters.outstanding_tokens(4), arrivals)
    cost(f"virtual ms per token, 95th percentile: {least.p95:.0f}, round_robin {turns.p95:.0f}")
    assert least.p95 < turns.p95 / 2


@task("4d_controller")
@pytest.mark.timeout(10)
def test_a_request_goes_to_one_replica_and_a_control_message_to_all_that_are_left():
    abort, flush, stats = AbortRequest(1, "a"), FlushRequest(2), StatsRequest(3)
    a, b = short("a"), short("b")
    goes_on, sent = turn_of(Scripted([2, 0]), [], [a, abort, b, flush, stats], [0, 2])
    cost(f"5 messages in, {len(sent)} out")
    assert goes_on is True
    assert sent == [(2, a), (0, abort), (2, abort), (0, b), (0, flush), (2, flush), (0, stats), (2, stats)]


@task("4d_controller")
@pytest.mark.timeout(10)
def test_the_dispatcher_hears_of_what_has_ended_before_it_picks():
    rule = Scripted([1, 0])
    turn_of(rule, [Finished(1, ["x", "y"])], [short("a"), short("b")], [0, 1])
    cost(f"in this order: {', '.join(rule.calls)}")
    assert rule.calls == ["finished x on 1", "finished y on 1", "pick a", "pick b"]


@task("4d_controller")
@pytest.mark.timeout(10)
def test_a_stop_goes_to_all_and_ends_the_loop():
    first, stop = short("a"), StopRequest(9)
    goes_on, sent = turn_of(Scripted([1, 1]), [], [first, stop, short("late")], [0, 1])
    cost(f"{len(sent)} messages out, none behind the stop")
    assert goes_on is False
    assert sent == [(1, first), (0, stop), (1, stop)]


@task("4d_controller")
@pytest.mark.timeout(120)
def test_in_a_real_engine_short_requests_avoid_the_replica_that_has_a_long_one():
    """Two replicas, five processes, the simulated accelerator: one long request, then short ones, one by one."""
    _, sent = turn_of(adapters.make_rule("outstanding", 2, 100), [], [short("a"), AbortRequest(1, "a")], [0, 1])
    assert [replica for replica, _ in sent] == [0, 0, 1], "not worth an engine yet: the request to 0, the abort to both"
    settings = {"stage": f"{__package__}.stage:launch_outstanding", "device": "sim", "dp_size": 2}
    settings["sim_profile"] = fleet.PROFILE
    with Engine(**settings) as engine:
        long = {"max_new_tokens": 4000, "ignore_eos": True}
        (stream,) = engine.submit(engine.make_requests(input_ids=[[1] * 20], sampling_params=long)[1])
        for number in range(6):
            engine.generate(input_ids=[number + 1] * 4, sampling_params={"max_new_tokens": 4, "ignore_eos": True})
        assert engine.abort(stream.rid), "the abort reached the replica that has the request"
        assert stream.result()["meta_info"]["finish_reason"]["type"] == "abort"
        finished = [stats["finished"] for stats in engine.stats()]
        assert engine.flush_cache()
    cost(f"requests that ended in replica 0 and 1: {finished}")
    assert finished == [1, 6]


# ---------------------------------------------------------------------- 3: prefix-aware


def prompt(conversation: int, tokens: int):
    """The first `tokens` of a conversation that shares nothing with any other."""
    return [1000 * (conversation + 1) + i for i in range(tokens)]


def ask(rule, rid: str, ids: list[int], ends: bool = True, output: int = 8) -> int:
    """The replica of a request, which ends at once unless said otherwise."""
    replica = rule.pick(fleet.make_request(rid, ids, output))
    if ends:
        rule.finished(replica, [rid])
    return replica


@task("4e_prefix")
@pytest.mark.timeout(10)
def test_a_conversation_stays_where_its_prefix_is():
    rule = adapters.prefix_aware(3, capacity=10**6, imbalance=10**6)
    first = [ask(rule, f"a{c}", prompt(c, 40)) for c in range(3)]
    later = [ask(rule, f"b{n}{c}", prompt(c, 40 + 20 * n)) for n in (1, 2) for c in (2, 0, 1)]
    cost(f"first prompts to {first}, later ones to {later}")
    assert first == [0, 1, 2]
    assert later == [2, 0, 1] * 2


@task("4e_prefix")
@pytest.mark.timeout(10)
def test_less_than_half_of_the_prompt_counts_as_nothing():
    rule = adapters.prefix_aware(2, capacity=10**6, imbalance=10**6)
    assert ask(rule, "busy", prompt(0, 40), ends=False) == 0
    half = ask(rule, "half", prompt(0, 20) + prompt(5, 20))
    less = ask(rule, "less", prompt(0, 19) + prompt(6, 21))
    cost(f"20 of 40 known: replica {half}; 19 of 40: replica {less}")
    assert half == 0, "half of it is there"
    assert less == 1, "too little is known, so it goes to the least outstanding"


@task("4e_prefix")
@pytest.mark.timeout(10)
def test_of_replicas_that_know_the_same_the_least_outstanding_is_taken():
    """30 tokens are known to 0 and to 1, and nothing to 2, which has nothing to do."""
    rule = adapters.prefix_aware(3, capacity=10**6, imbalance=10**6)
    shared = prompt(0, 30)
    first = ask(rule, "a", shared, ends=False, output=10)
    second = ask(rule, "b", shared + prompt(5, 40), ends=False, output=10)
    assert [first, second] == [0, 1], "30 of 70 tokens are too few to follow them"
    picked = [ask(rule, f"c{i}", shared + prompt(6 + i, 10), ends=False, output=1) for i in range(2)]
    cost(f"outstanding 40, 80 and 0: to {picked[0]}; then 81, 80 and 0: to {picked[1]}")
    assert picked == [0, 1]


@task("4e_prefix")
@pytest.mark.timeout(30)
def test_conversations_find_more_of_their_prompt_in_the_cache():
    """One replica's pool holds a part of the conversations, all four together hold most of them. The reference finds
    more than twice as much as round_robin."""
    arrivals = fleet.conversations(seed=1, count=24, rounds=8, per_second=40)
    turns = fleet.Fleet(4).run(fleet.RoundRobin(4), arrivals)
    aware = fleet.Fleet(4).run(adapters.prefix_aware(4, capacity=8192, imbalance=4096), arrivals)
    cost(f"prompt tokens found in the cache: {aware.cached:.0%}, round_robin {turns.cached:.0%}")
    assert aware.cached > 1.7 * turns.cached


@task("4f_balance")
@pytest.mark.timeout(30)
def test_one_hot_prompt_does_not_end_up_on_one_replica():
    arrivals = fleet.one_hot_prompt(seed=1, count=160, per_second=60)
    turns = fleet.Fleet(4).run(fleet.RoundRobin(4), arrivals)
    aware = fleet.Fleet(4).run(adapters.prefix_aware(4, capacity=8192, imbalance=2048), arrivals)
    cost(
        f"shares {in_words(aware.shares)}; in the cache {aware.cached:.0%};"
        f" 95th percentile {aware.p95 / turns.p95:.2f} of round_robin's"
    )
    assert max(aware.shares) < 0.5
    assert aware.p95 < 1.5 * turns.p95
    assert aware.cached > 0.8


@task("4f_balance")
@pytest.mark.timeout(10)
def test_the_imbalance_is_a_bound_in_tokens():
    """Replica 0 knows the prompt. 50 + 10 tokens each: 60, 120, 180 outstanding there, and 0 elsewhere."""
    rule = adapters.prefix_aware(2, capacity=10**6, imbalance=120)
    picked = [ask(rule, f"r{i}", prompt(0, 50), ends=False, output=10) for i in range(4)]
    cost(f"with an imbalance of at most 120 tokens: {picked}")
    assert picked == [0, 0, 0, 1]


@task("4f_balance")
@pytest.mark.timeout(10)
def test_what_the_replica_has_evicted_is_forgotten():
    """The oldest conversation leaves the mirror, as it leaves the replica's own cache."""
    rule = adapters.prefix_aware(2, capacity=200, imbalance=10**6)
    for c in range(20):
        ask(rule, f"r{c}", prompt(c, 50))
        assert max(adapters.known_tokens(rule)) <= 200
    known = adapters.known_tokens(rule)
    ask(rule, "busy", prompt(40, 60), ends=False, output=500)  # to 0, so that what is unknown goes to 1
    newest, oldest = ask(rule, "new", prompt(18, 60)), ask(rule, "old", prompt(0, 60))
    cost(f"1,000 prompt tokens seen, {known} believed to be cached")
    assert sum(known) > 200
    assert newest == 0, "it went to 0, and is among the last four there"
    assert oldest == 1, "it went to 0 too, long ago"
