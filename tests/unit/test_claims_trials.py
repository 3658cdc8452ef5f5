"""Predictions in bounds, trials and their outcomes, and that they are of the claims that say so."""

from __future__ import annotations

import pytest

from evolution.engine import EngineError
from evolution.history import data
from experiments.claims import TRIALS
from experiments.claims.bounds import at_least, at_most, between, exactly, ratio, together
from experiments.claims.once import forget, once
from experiments.claims.trial import Clock, Outcome, Trial, run_trial

SIX = [2.0, 2.1, 2.2, 2.3, 2.4, 2.5]


def test_each_trial_is_of_a_claim_that_says_that_it_is_measured():
    claims = data.claims()
    assert {claim.number for claim in claims if claim.measured} == set(TRIALS)
    assert len(TRIALS) >= 20
    assert all(claims[number - 1].verdict != "not checkable" for number in TRIALS)
    assert list(TRIALS) == sorted(TRIALS)


@pytest.mark.parametrize("trial", TRIALS.values(), ids=lambda trial: trial.number)
def test_a_prediction_is_of_counts_and_ratios_and_never_of_this_machines_time(trial):
    assert trial.predicted and trial.seconds > 0 and trial.how
    for bound in trial.predicted:
        assert bound.least <= bound.most
        assert bound.least > float("-inf") or bound.most < float("inf"), "anything would do"
        words = f" {bound} ".replace(",", " ").replace(":", " ")
        assert ":" not in bound.what, "a colon stands before what is allowed"
        assert not any(f" {unit} " in words for unit in ("ms", "us", "seconds"))
    assert len({bound.what for bound in trial.predicted}) == len(trial.predicted), "two bounds have one name"


def test_all_of_them_fit_into_ten_minutes():
    assert sum(trial.seconds for trial in TRIALS.values()) < 450


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("bound", "samples", "holds", "measured"),
    [
        (exactly("x", 2), [2.0], "yes", "2"),
        (exactly("x", 2), [2.0, 3.0], "no", "2 to 3"),
        (at_least("x", 10), [1234.0], "yes", "1,234"),
        (at_least("x", 10), [9.5], "no", "9.50"),
        (at_most("x", 0.05), [0.0071, 0.0004], "yes", "0.0004 to 0.0071"),
        (between("x", 1, 1.01), [1.0003], "yes", "1.0003"),
        (between("x", 1, 1.01), [1.02], "no", "1.02"),
        (ratio("x", least=1.5), SIX, "yes", "2.25 [2.00, 2.50]"),
        (ratio("x", most=1.5), SIX, "no", "2.25 [2.00, 2.50]"),
        (ratio("x", least=2.2), SIX, "undecided", "2.25 [2.00, 2.50]"),
        (ratio("x", 2.1, 2.4), SIX, "undecided", "2.25 [2.00, 2.50]"),
        (ratio("x", least=1.5), SIX[:5], "undecided", "2.20 [2.00, 2.40: range of 5]"),
    ],
)
def test_samples_against_a_bound(bound, samples, holds, measured):
    assert bound.holds(samples) == holds
    assert bound.measured(samples) == measured


def test_a_bound_says_what_is_allowed():
    said = [str(bound) for bound in (exactly("a", 2), at_least("b", 0.65), at_most("c", 10), ratio("d", 1.2, 6))]
    assert said == ["a: 2", "b: at least 0.65", "c: at most 10", "d: 1.20 to 6"]


def test_no_sample_is_no_answer():
    with pytest.raises(ValueError, match="there is no sample"):
        exactly("x", 2).holds([])


@pytest.mark.parametrize(
    ("verdicts", "all_of_them"),
    [(["yes", "yes"], "yes"), (["yes", "undecided"], "undecided"), (["undecided", "no", "yes"], "no")],
)
def test_one_bound_that_fails_is_enough(verdicts, all_of_them):
    assert together(verdicts) == all_of_them


# ---------------------------------------------------------------------- outcomes


def trial(measure, *predicted) -> Trial:
    return Trial(3, "nothing", predicted or (exactly("a", 2), at_least("b", 1)), 2.0, measure)


def test_an_outcome_has_words_and_raw_samples():
    outcome = run_trial(trial(lambda: [[2], [True, 5]]))
    assert (outcome.holds, outcome.failed) == ("yes", False)
    assert outcome.measured == "a: 2; b: 1 to 5"
    record = outcome.record()
    assert record["predicted"] == "a: 2; b: at least 1"
    assert [bound["samples"] for bound in record["bounds"]] == [[2.0], [1.0, 5.0]]
    assert (record["bounds"][1]["least"], record["bounds"][1]["most"]) == (1, None)


def test_what_does_not_come_out_fails_and_what_is_undecided_does_not():
    assert run_trial(trial(lambda: [[3], [1]])).failed
    undecided = run_trial(trial(lambda: [SIX], ratio("c", most=2.2)))
    assert (undecided.holds, undecided.failed) == ("undecided", False)


@pytest.mark.parametrize("error", [EngineError("evo-peer TP1 died\n  a trace"), TimeoutError("no process came")])
def test_an_engine_that_ends_is_told_in_one_line(error):
    def measure():
        raise error

    outcome = run_trial(trial(measure))
    assert outcome.failed and outcome.error == str(error).partition("\n")[0]
    assert outcome.measured.startswith("not measured: ") and "\n" not in outcome.measured
    assert [bound["samples"] for bound in outcome.record()["bounds"]] == [[], []]


def test_a_mistake_of_the_trial_itself_is_not_hidden():
    with pytest.raises(ValueError):
        run_trial(trial(lambda: [[2]]))


def test_the_remaining_time_follows_what_the_runs_took():
    three = [trial(lambda: []) for _ in range(3)]
    clock = Clock(three)
    assert clock.remaining == 6
    clock.ran(Outcome(three[0], [], "yes", 4.0))
    assert clock.remaining == 4, "two seconds are too few to tell"
    clock = Clock([Trial(3, "nothing", (), 10.0, lambda: []) for _ in range(3)])
    clock.ran(Outcome(three[0], [], "yes", 20.0))
    assert clock.remaining == 40


def test_what_several_trials_look_at_is_measured_once_until_it_is_forgotten():
    calls = []

    @once
    def measured(name: str) -> int:
        calls.append(name)
        return len(calls)

    assert [measured("a"), measured("a"), measured("b")] == [1, 1, 2]
    forget()
    assert measured("a") == 3
