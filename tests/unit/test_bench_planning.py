"""`bench planning` on small sizes: the turns are those it says, growth is fitted right, the picture is drawn."""

from __future__ import annotations

import random

import numpy as np
import pytest

from experiments.bench import planning, planning_turns
from experiments.bench.planning_plot import draw

SIZES = planning.Sizes(running=(2, 3, 5), waiting=(0, 2, 3), running_meanwhile=3, waiting_meanwhile=2)
PARTS = {
    "decode": {"plan", "commit"},
    "admission": {"add", "order", "admit", "commit"},
    "burst": {"add", "order", "admit", "commit prefill", "plan decode", "commit end"},
}


def test_every_point_of_every_curve_is_measured_once_a_repeat(tmp_path):
    series = planning.measure(SIZES, repeats=2)
    assert {(one.kind, one.axis, one.policy) for one in series} == {
        (kind, axis, policy)
        for policy in ("lpm", "fcfs")
        for kind, axis in (
            ("decode", "running"),
            ("decode", "waiting"),
            ("admission", "running"),
            ("admission", "waiting"),
            ("burst", "arriving"),
        )
    }
    for one in series:
        assert set(one.microseconds) == PARTS[one.kind]
        assert all(np.array(samples).shape == (3, 2) for samples in one.microseconds.values())
    slopes = [slope for one in series for slope in planning.growth(one)]
    assert {slope["part"] for slope in slopes} == set.union(*PARTS.values())
    assert {slope["verdict"] for slope in slopes} == {"undecided"}  # two repeats
    planning.show({"slopes": slopes, "series": [vars(one) for one in series], "verdict": "holds"})
    for path in draw({"series": [vars(one) for one in series]}, tmp_path / "new"):
        assert (tmp_path / "new" / path).stat().st_size > 1000


def test_a_load_holds_what_it_says_and_keeps_it():
    load = planning_turns.Load("lpm", running=3, waiting=4)
    for sample in (planning_turns.sample_decode, planning_turns.sample_admission, planning_turns.sample_decode):
        sample(load)
        assert (load.scheduler.running_count, load.scheduler.waiting_count) == (3, 4)


def test_a_turn_of_another_kind_is_not_measured_silently():
    load = planning_turns.Load("fcfs", running=3, waiting=0)
    load.scheduler.abort(load.entered[0])
    with pytest.raises(AssertionError, match="a decode turn of all that run"):
        planning_turns.sample_decode(load)


def test_the_order_is_timed_only_meanwhile():
    before = planning_turns.scheduler_module.order_waiting
    with planning_turns.timed_order() as ordering:
        assert planning_turns.scheduler_module.order_waiting is not before
        planning_turns.scheduler_module.order_waiting([], "fcfs", None, random.Random(0))
    assert ordering.microseconds > 0
    assert planning_turns.scheduler_module.order_waiting is before


def fitted(sizes: np.ndarray, samples: np.ndarray) -> tuple[float, float, float]:
    found = planning.fit_powers(sizes, samples)
    return found["median"], found["low"], found["high"]


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_power_is_found_through_noise(power):
    sizes = np.array([128, 256, 512, 1024])
    noise = np.random.default_rng(0).lognormal(0, 0.2, (4, 40))
    found, low, high = fitted(sizes, sizes[:, None] ** power * noise)
    assert low <= found <= high
    assert abs(found - power) < 0.15
    assert high - low < 0.3


def test_a_step_that_turns_quadratic_within_the_range_is_seen():
    sizes = np.array([128, 256, 512, 1024])
    times = sizes + sizes**2 / 512.0  # at the end two thirds of it
    assert fitted(sizes, times[:, None] * np.ones(5))[1] > planning.QUADRATIC_FROM
