"""What the benches share: verdicts, options that are lists, rounds of samples, and what their kept results may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

import report
from experiments.bench.option_lists import names, numbers
from experiments.bench.rounds import medians, pooled, spread, spread_verdict
from experiments.bench.verdicts import combined, in_words

MEASURED = Path(report.__file__).parent / "measured"


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        (["holds", "undecided", "fails", None], "fails"),
        (["holds", "undecided", None], "undecided"),
        (["holds", None], "holds"),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_worst_verdict_is_that_of_all(verdicts: list[str | None], together: str | None) -> None:
    assert combined(verdicts) == together


def test_verdicts_are_counted_in_words() -> None:
    assert in_words(["holds", "holds", "undecided", None]) == "2 hold, 1 undecided, 0 fail"
    assert in_words([None]) == "no bound to keep"


@pytest.mark.parametrize("text", ["\u00b2", "1,\u0663", "", "1,", "-1", "0", "1.5"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^--sizes '.*': give sizes$"):
        numbers("--sizes", text, 1, "give sizes")


def test_lists_keep_an_order_and_hold_nothing_twice() -> None:
    assert numbers("--sizes", "4,2", 1, "") == [4, 2]
    assert names("--stages", "peer,rpyc", ("rpyc", "broadcast", "peer")) == ["rpyc", "peer"]
    with pytest.raises(ValueError, match="--sizes: 2 is there twice"):
        numbers("--sizes", "2,4,02", 1, "")
    with pytest.raises(ValueError, match="--stages: peer is there twice"):
        names("--stages", "peer,peer", ("peer",))


def test_rounds_have_medians_and_these_an_interval() -> None:
    rounds = [[3.0, 1.0, 2.0], 5.0]
    assert medians(rounds) == [2.0, 5.0]
    assert pooled(rounds).tolist() == [3.0, 1.0, 2.0, 5.0]
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert (found["median"], found["low"], found["high"]) == (4.0, 1.0, 7.0)
    assert [spread_verdict(found, at_most) for at_most in (7.0, 4.0, 0.5)] == ["holds", "undecided", "fails"]
    assert spread_verdict(spread([1.0]), 7.0) == "undecided"


@pytest.mark.parametrize("path", sorted(MEASURED.rglob("*.json")), ids=lambda path: path.name)
def test_kept_results_hold_no_folder_of_the_machine_they_were_measured_on(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not [folder for folder in ("/root", "/tmp/", "/home/") if folder in text]
