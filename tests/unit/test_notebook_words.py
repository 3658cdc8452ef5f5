"""What a notebook says of a ratio goes no further than its interval; tables, axes, and results that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from experiments.intervals import pairwise_ratio
from experiments.notebooks.shared import (
    bench_result,
    comparison,
    difference_in_words,
    in_words,
    log_scale,
    ratio_rows,
    table,
)
from report.pictures.style import OTHER_STAGE


@pytest.mark.parametrize(
    ("above", "words"),
    [
        ((2.0, 2.1, 1.9, 2.0, 2.0, 2.0), "2.00 [1.90, 2.10]: more"),
        ((0.5, 0.5, 0.5, 0.5, 0.5, 0.5), "0.50 [0.50, 0.50]: less"),
        ((0.9, 0.9, 1.0, 1.3, 1.3, 1.0), "1.00 [0.90, 1.30]: no difference seen"),
        ((1.01, 1.01, 1.1, 1.6, 1.6, 1.1), "1.10 [1.01, 1.60]: unstable: the interval is wider than the effect"),
        ((2.0, 2.1, 1.9), "2.00 [1.90, 2.10: range of 3]: more, but 3 are too few for 95%"),
    ],
)
def test_a_ratio_in_words(above: tuple[float, ...], words: str) -> None:
    assert in_words(pairwise_ratio(above, [1.0] * len(above))) == words


def test_two_pairs_conclude_nothing() -> None:
    assert in_words(pairwise_ratio([2.0, 2.0], [1.0, 1.0])) == (
        "2 (from 2 only: no interval, so nothing may be concluded)"
    )
    assert difference_in_words([1.5, 2.5], "ms") == "2 ms (from 2 only: no interval, so nothing may be concluded)"


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ((1.0, 2.0, 3.0, 2.0, 2.0, 2.0), "2 ms [1, 3]: more"),
        ((-1.0, -2.0, -3.0, -2.0, -2.0, -2.0), "-2 ms [-3, -1]: less"),
        ((-1.0, 2.0, 3.0, 2.0, 2.0, 2.0), "2 ms [-1, 3]: no difference seen"),
        ((1.0, 2.0, 3.0), "2 ms [1, 3: range of 3]: more, but 3 are too few for 95%"),
    ],
)
def test_a_difference_in_words(samples: tuple[float, ...], words: str) -> None:
    assert difference_in_words(samples, "ms") == words


def test_a_status_of_1_is_a_comparison_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")  # a program that ends with it
    with pytest.raises(RuntimeError, match="status 1"):
        comparison(True, "", [])


def test_a_logarithmic_scale_has_plain_numbers() -> None:
    figure, axes = plt.subplots()
    axes.plot([1, 2], [1.6, 1.9])
    log_scale(axes)
    assert len([tick for tick in axes.get_yticklabels() if tick.get_text().startswith("1.")]) >= 2
    plt.close(figure)


def test_a_table_in_markdown() -> None:
    shown = table(["", "a", "b"], [["x", 1234.5, 0.00123], ["y", None, 2]]).data
    assert shown.splitlines() == ["|  | a | b |", "| :-- | --: | --: |", "| x | 1,234 | 0.00123 |", "| y | – | 2 |"]


def test_an_axis_of_ratios_has_ticks_on_both_sides_of_one() -> None:
    for above in ((0.95, 1.0, 1.15), (0.4, 3.0, 40.0)):
        figure, axes = plt.subplots()
        ratio_rows(axes, [("x", pairwise_ratio(above, [1.0] * 3), OTHER_STAGE)], "over")
        labels = [tick.get_text() for tick in axes.get_xticklabels()]
        assert "1" in labels[1:-1]
        plt.close(figure)


def test_results_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing holds no comparison"):
        comparison(False, str(tmp_path / "nothing"), [])
    with pytest.raises(ValueError, match="nothing.json: set MEASURE = True, or RESULTS to .* `bench idle --json`"):
        bench_result(False, str(tmp_path / "nothing.json"), ["idle"])


def test_a_measurement_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="status 2: .*--repeats must be at least 1"):
        bench_result(True, "", ["dispatch", "--repeats", "0"])
