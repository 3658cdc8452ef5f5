"""The public tests of lab 7. `python -m evolution labs grade 7` runs them; each prints what it cost."""

from __future__ import annotations

import random
import time

import psutil
import pytest

from common.messages import StopRequest
from common.os_accounts import process_cpu_ns, thread_accounts
from experiments.labs.marks import cost, task

from . import adapters, bare, measure, workloads
from .adapters import STAGE
from .conformance import judge

PATIENCE = 10.0  # s; a message reaches all ranks within a millisecond on a machine that has nothing else to do
ENDLESS = 1000.0  # until the test's own timeout
IDLE_S = 2.0
# A rank that blocks is not woken at all, or by its library now and then: gloo's thread wakes 100 times a second. One
# that sleeps 1 ms between two looks wakes about 900 times.
MOST_SWITCHES = 300  # a second and rank
MOST_CORES = 0.1  # of all ranks together; two that look every millisecond take about as much, one that spins takes 1
# A turn of your own may cost this many times what peer's costs; beside other work on two cores CPU time varies by half.
MOST_MESSAGES = 4.0
MOST_CPU = 2.5
MOST_IDLE = 4.0
IDLE_SLACK = 0.03  # cores, for a peer that burned next to nothing


# ---------------------------------------------------------------------- 7a, 7b


def check_order(size: int, slow: tuple[float, ...], messages: list, seed: int) -> None:
    """All ranks have the same list in each turn, and together all messages in their order, whoever is slow."""
    adapters.share(size, "unused")
    rng = random.Random(seed)
    with bare.crew(size, slow) as crew:
        for burst in workloads.bursts(messages, seed):
            crew.send(*burst)
            time.sleep(rng.choice((0.0, 0.002, 0.02)))
        complete = crew.wait(PATIENCE)
        assert not crew.failures, crew.failed()
        assert complete, f"of {len(crew.sent)} messages came {[len(crew.received(rank)) for rank in range(size)]}"
        turns = [crew.turns(rank) for rank in range(size)]
        received = [crew.received(rank) for rank in range(size)]
    shortest = min(len(one) for one in turns)  # some may be a turn ahead
    for number in range(shortest):
        assert all(one[number] == turns[0][number] for one in turns), f"the ranks' lists of turn {number} differ"
    assert all(one == crew.sent for one in received), "messages are lost, or come twice, or in another order"
    empty = sum(not turn for turn in turns[0])
    cost(f"{len(messages)} messages in {shortest} turns on {size} ranks, {empty} of them empty")


@task("7a_order")
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("size", "slow"), [(2, ()), (2, (0.0, 0.04)), (3, (0.0, 0.02, 0.0)), (1, ())])
def test_every_rank_has_the_same_turns(size: int, slow: tuple[float, ...]) -> None:
    check_order(size, slow, workloads.mixed_messages(60, seed=size), seed=1)


@task("7b_large")
@pytest.mark.timeout(30)
def test_a_large_message() -> None:
    """4 MiB, as an image of a request has."""
    adapters.share(2, "unused")
    with bare.crew(2) as crew:
        crew.send(workloads.with_image(4 << 20, seed=1))
        assert crew.wait(ENDLESS), crew.failed()
        assert [crew.received(rank) for rank in range(2)] == [crew.sent] * 2
    cost("1 message of 4 MiB to 1 rank")


# ---------------------------------------------------------------------- 7c


def counted(pids: list[int]) -> tuple[int, int]:
    threads = [thread for pid in pids for thread in thread_accounts(pid)]
    return sum(process_cpu_ns(pid) for pid in pids), sum(one.voluntary + one.involuntary for one in threads)


def check_idle(size: int) -> None:
    adapters.share(size, "unused")
    with bare.crew(size) as crew:
        crew.send(workloads.one_request(1))
        assert crew.wait(PATIENCE), crew.failed() or "the first message has not reached every rank"
        time.sleep(0.5)
        before = counted(crew.pids)
        time.sleep(IDLE_S)
        cpu, switches = ((b - a) / IDLE_S for a, b in zip(before, counted(crew.pids), strict=True))
        crew.send(workloads.one_request(2))
        again = crew.wait(PATIENCE)
    cost(f"{cpu / 1e9:.4f} cores and {switches / size:.0f} context switches a second and rank, {size} idle ranks")
    assert again, "after the silence a message does not reach every rank"
    assert cpu / 1e9 <= MOST_CORES
    assert switches / size <= MOST_SWITCHES


@task("7c_idle")
@pytest.mark.timeout(90)
def test_idle_ranks_are_off_the_cores() -> None:
    check_idle(2)


# ---------------------------------------------------------------------- 7d


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_stop(size: int, while_busy: bool) -> None:
    """The stop comes alone, to ranks that are idle, or while a slow rank 0 is still busy with a message."""
    adapters.share(size, "unused")
    with bare.crew(size, (0.3, *[0.0] * (size - 1)) if while_busy else ()) as crew:
        crew.send(workloads.one_request(3))
        arrived = crew.wait_for(lambda rank: crew.received(rank), PATIENCE)
        assert arrived, crew.failed() or "the first message has not reached every rank"
        if not while_busy:
            time.sleep(0.3)  # the turns in which they are busy are over
        below = [child.pid for pid in crew.pids for child in psutil.Process(pid).children(recursive=True)]
        crew.supervisor.expect_exit()
        crew.send(StopRequest(9))
        left = crew.wait_until_left(PATIENCE)
        assert left, f"{crew.failed()}\nstill in their loops: {[r for r in range(size) if not crew.left(r)]}"
        assert len({len(crew.turns(rank)) for rank in range(size)}) == 1, "the ranks leave in different turns"
        assert [crew.received(rank) for rank in range(size)] == [crew.sent] * size
        deadline = time.monotonic() + PATIENCE
        while any(lives(pid) for pid in (*crew.pids, *below)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not [pid for pid in crew.pids if lives(pid)], "a rank has left its loop, and its process does not end"
        assert not [pid for pid in below if lives(pid)], "a process that a rank started is left"
        turns = len(crew.turns(0))
    cost(f"{size} ranks left in turn {turns}")


@task("7d_stop")
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("size", "while_busy"), [(2, False), (2, True)])
def test_all_leave_in_the_same_turn(size: int, while_busy: bool) -> None:
    check_stop(size, while_busy)


# ---------------------------------------------------------------------- 2


@task("7e_one_rank")
@pytest.mark.timeout(200)
def test_the_suite_with_one_rank() -> None:
    adapters.claims("7e")
    cost(judge("tp1-dp1-replicated-level and not processes_are", patience=180, file="test_conformance.py"))


@task("7f_two_ranks")
@pytest.mark.timeout(200)
def test_the_suite_with_two_ranks() -> None:
    adapters.claims("7f")
    cost(judge("tp2-dp1-replicated-level and not processes_are", patience=180, file="test_conformance.py"))


@task("7g_processes")
@pytest.mark.timeout(200)
def test_processes_their_end_and_a_death() -> None:
    adapters.claims("7g")
    chosen = "(processes_are and tp2-dp1-replicated-level) or clean_end or test_a_killed_process"
    cost(judge(chosen, patience=180, file="test_conformance.py"))


# ---------------------------------------------------------------------- 3


def check_ranking(tp_size: int, requests: int, others: tuple[str, ...]) -> None:
    """`others` ends with peer."""
    costs = [measure.measure(stage, tp_size, requests) for stage in (STAGE, *others)]
    own, peer = costs[0], costs[-1]
    print(measure.table(costs))
    cost(
        f"beside peer: {own.messages} messages a turn to {peer.messages}, CPU {own.cpu_us / peer.cpu_us:.2f} times, "
        f"idle {own.idle_cores:.4f} cores to {peer.idle_cores:.4f}"
    )
    assert own.messages >= tp_size - 1, "every rank must be told of every turn: say what you send to the trace"
    assert own.messages <= MOST_MESSAGES * peer.messages
    assert own.cpu_us <= MOST_CPU * peer.cpu_us
    assert own.idle_cores <= MOST_IDLE * peer.idle_cores + IDLE_SLACK


@task("7h_ranking")
@pytest.mark.timeout(200)
def test_ranked_beside_the_three() -> None:
    adapters.claims("7h")
    check_ranking(2, 8, ("rpyc", "broadcast", "peer"))
