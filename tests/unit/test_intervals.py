"""Intervals of medians and ratios, against the binomials and against chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.intervals import (
    CONFIDENCE,
    ENOUGH,
    NO_DIFFERENCE,
    UNSTABLE,
    coverage,
    median_interval,
    pairwise_ratio,
    remark,
    shown,
    verdict,
)


def a_ratio(median: float, low: float, high: float, pairs: int = 7) -> dict:
    return {"median": median, "low": low, "high": high, "pairs": [median] * pairs}


def test_a_ratio_is_made_pair_by_pair() -> None:
    ratio = pairwise_ratio([2.0, 40.0, 6.0], [1.0, 10.0, 2.0])
    assert ratio["pairs"] == [2.0, 4.0, 3.0]
    assert (ratio["median"], ratio["low"], ratio["high"]) == (3.0, 2.0, 4.0)
    with pytest.raises(ValueError):
        pairwise_ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("n", "depth"), [(1, 1), (3, 1), (6, 1), (7, 1), (8, 1), (9, 2), (12, 3), (15, 4), (25, 8)])
def test_the_interval_goes_as_deep_as_the_binomials_allow(n: int, depth: int) -> None:
    assert median_interval(range(n)) == (depth - 1, n - depth)
    beyond = sum(math.comb(n, k) for k in range(depth)) / 2**n
    assert coverage(n) == pytest.approx(1 - 2 * beyond)


@given(st.integers(1, 60))
def test_six_samples_are_the_fewest_that_reach_95_percent(n: int) -> None:
    assert (coverage(n) >= CONFIDENCE) == (n >= ENOUGH)


@pytest.mark.parametrize("n", [7, 9, 25])
def test_it_holds_the_median_as_often_as_it_says(n: int) -> None:
    samples = np.random.default_rng(n).exponential(size=(2000, n))
    held = [low <= math.log(2) <= high for low, high in map(median_interval, samples)]
    assert np.mean(held) == pytest.approx(coverage(n), abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most"),
    [(2.3, 2.6, "holds", "fails"), (1.8, 2.1, "fails", "holds"), (2.1, 2.3, "undecided", "undecided")],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low: float, high: float, at_least: str, at_most: str) -> None:
    ratio = a_ratio((low + high) / 2, low, high)
    assert verdict(ratio, at_least=2.2) == at_least
    assert verdict(ratio, at_most=2.2) == at_most
    few = a_ratio((low + high) / 2, low, high, pairs=5)
    assert verdict(few, at_least=2.2) == verdict(few, at_most=2.2) == "undecided"


def test_ratios_that_say_little_are_remarked_on() -> None:
    assert remark(a_ratio(1.1, 0.9, 1.2)) == NO_DIFFERENCE
    assert remark(a_ratio(1.2, 1.05, 1.6)) == UNSTABLE
    assert remark(a_ratio(2.0, 1.9, 2.1)) == ""
    assert remark(a_ratio(2.0, 1.2, 2.5)) == UNSTABLE == remark(a_ratio(1 / 2.0, 1 / 2.5, 1 / 1.2))
    assert remark(a_ratio(0.5, 0.4, 0.7)) == "" == remark(a_ratio(1 / 0.5, 1 / 0.7, 1 / 0.4))
    assert remark(a_ratio(2.0, 2.0, 2.0, pairs=1)) == NO_DIFFERENCE


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (a_ratio(2.614, 2.549, 2.701), "2.61 [2.55, 2.70]"),
        (a_ratio(0.76, 0.652, 0.9993), "0.76 [0.65, 0.999]"),
        (a_ratio(1.0, 0.98, 1.001), "1.00 [0.98, 1.001]"),
        (a_ratio(0.0042, 0.004, 0.0051), "0.00420 [0.00400, 0.00510]"),
        (a_ratio(820.4, 99.96, 1200), "820 [100.0, 1200]"),
        (a_ratio(2.0, 1.9, 2.1, pairs=4), "2.00 [1.90, 2.10: range of 4]"),
        (a_ratio(2.0, 2.0, 2.0, pairs=1), "2.00 (one pair)"),
    ],
)
def test_a_ratio_is_shown_with_three_figures_and_what_excludes_1_as_such(ratio: dict, text: str) -> None:
    assert shown(ratio) == text
