"""The hidden tests of lab 7: more ranks, other seeds, longer messages, a simulated accelerator."""

from __future__ import annotations

import pytest

from experiments.labs.marks import cost, task

from . import adapters, bare, workloads
from .conformance import judge
from .test_lab import ENDLESS, check_idle, check_order, check_ranking, check_stop


@task("7a_order")
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("size", "slow", "seed"), [(4, (0.01, 0.0, 0.02, 0.0), 7), (2, (0.02, 0.0), 8)])
def test_order_with_other_seeds(size: int, slow: tuple[float, ...], seed: int) -> None:
    check_order(size, slow, workloads.mixed_messages(90, seed), seed)


@task("7b_large")
@pytest.mark.timeout(30)
def test_larger_messages_to_two_ranks() -> None:
    adapters.share(3, "unused")
    with bare.crew(3) as crew:
        for seed, nbytes in enumerate((3_000_001, 1, 9 << 20)):
            crew.send(workloads.with_image(nbytes, seed))
            assert crew.wait(ENDLESS), crew.failed()
        assert [crew.received(rank) for rank in range(3)] == [crew.sent] * 3
    cost("12 MB to 2 ranks")


@task("7c_idle")
@pytest.mark.timeout(90)
@pytest.mark.parametrize("size", [1, 3])
def test_other_idle_ranks(size: int) -> None:
    check_idle(size)


@task("7d_stop")
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("size", "while_busy"), [(1, False), (3, True)])
def test_others_leave_in_the_same_turn(size: int, while_busy: bool) -> None:
    check_stop(size, while_busy)


@task("7e_one_rank")
@pytest.mark.timeout(200)
def test_the_suite_on_sim_with_one_rank() -> None:
    adapters.claims("7e")
    cost(judge("tp1-dp1-replicated", patience=180, file="test_sim.py"))


@task("7f_two_ranks")
@pytest.mark.timeout(200)
def test_the_suite_on_sim_with_four_ranks() -> None:
    adapters.claims("7f")
    cost(judge("tp4-dp1-replicated", patience=180, file="test_sim.py"))


@task("7g_processes")
@pytest.mark.timeout(200)
def test_a_death_on_sim() -> None:
    adapters.claims("7g")
    cost(judge("killed_rank", patience=180, file="test_sim.py"))


@task("7h_ranking")
@pytest.mark.timeout(200)
def test_ranked_with_more_ranks() -> None:
    adapters.claims("7h")
    check_ranking(3, 5, ("peer",))
