"""`claims --run`: predictions before, a table after, exit status, and the file that `report` puts on its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import experiments.claims
from evolution.cli import main
from experiments.claims.bounds import at_least, exactly
from experiments.claims.trial import Trial
from report.bench_files import fill, read_bench


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["claims", *arguments])
    return ended.value.code


@pytest.fixture
def trials(monkeypatch) -> dict[int, Trial]:
    """Of claims 2 (wrong), 3 (partly) and 4 (true), in place of those that start engines."""
    found = {
        number: Trial(number, f"run {number}", (exactly("a count", 2), at_least("another", 1)), 1.0, lambda: [[2], [1]])
        for number in (2, 3, 4)
    }
    monkeypatch.setattr(experiments.claims, "TRIALS", found)
    monkeypatch.setenv("COLUMNS", "200")
    return found


def test_each_prediction_is_printed_before_its_run_and_all_are_in_a_table(trials, capsys):
    printed_before = []

    def measure() -> list[list[int]]:
        printed_before.append(capsys.readouterr().out)
        return [[2], [1]]

    for number, one in trials.items():
        trials[number] = Trial(number, one.how, one.predicted, 1.0, measure)
    assert status("--run") == 0
    for number, said in zip((2, 3, 4), printed_before, strict=True):
        assert f"claim {number}: run {number}" in said and " s left]" in said
        assert "predicted  a count: 2\n" in said and "predicted  another: at least 1\n" in said
    printed = capsys.readouterr().out
    assert "Predicted against measured" in printed
    assert "3 claims were run" in printed and "3 came out as predicted, 0 did not" in printed
    assert "Every RPC serialised" in printed and "partly" in printed


def test_a_claim_that_comes_out_against_its_verdict_is_exit_status_1(trials, capsys):
    trials[3] = Trial(3, "run 3", (exactly("a count", 2),), 1.0, lambda: [[5]])
    assert status("--run") == 1
    printed = capsys.readouterr().out
    assert "2 came out as predicted, 1 did not" in printed
    assert status("--run", "--only", "2", "4") == 0


def test_a_run_that_ends_is_told_and_the_others_go_on(trials, capsys):
    def dies():
        raise TimeoutError("evo-peer was not ready")

    trials[2] = Trial(2, "run 2", (exactly("a count", 2),), 1.0, dies)
    assert status("--run") == 1
    printed = capsys.readouterr().out
    assert "measured   evo-peer was not ready\n  came out   not measured" in printed
    assert "2 came out as predicted" in printed


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [(["--only", "4", "2"], [2, 4]), (["--verdict", "wrong"], [2]), (["--verdict", "true", "partly"], [3, 4])],
)
def test_only_those_that_were_asked_for_are_run(trials, tmp_path, arguments, numbers):
    path = tmp_path / "claims.json"
    assert status("--run", "--json", str(path), *arguments) == 0
    assert [row["number"] for row in json.loads(path.read_text())["claims"]] == numbers


def test_the_file_holds_samples_and_environment_and_is_a_table_on_the_page(trials, tmp_path):
    trials[3] = Trial(3, "run 3", (exactly("a count", 2),), 1.0, lambda: [[5]])
    path = tmp_path / "claims.json"
    assert status("--run", "--json", str(path)) == 1
    result = json.loads(path.read_text())
    assert (result["bench"], result["verdict"]) == ("claims", "fails")
    assert result["environment"]["cpu_count"] >= 1 and result["environment"]["command"]
    assert result["claims"][1]["bounds"][0]["samples"] == [5]
    bench = read_bench(path)
    fill(bench, tmp_path)
    (table,) = bench.tables
    assert [line[:1] + line[-2:] for line in table.lines] == [
        ["2", "2", "yes"],
        ["2", "1", "yes"],
        ["3", "5", "no"],
        ["4", "2", "yes"],
        ["4", "1", "yes"],
    ]
    assert "2 came out as predicted, 1 did not" in bench.says[0]
    text = (tmp_path / "tables" / "claims.md").read_text()
    assert "| 3 | Every RPC serialised its arguments and went through a thread pool. | partly |" in text


def test_results_are_written_after_each_run(trials, tmp_path):
    path = tmp_path / "claims.json"

    def interrupted():
        raise KeyboardInterrupt

    trials[4] = Trial(4, "run 4", (exactly("a count", 2),), 1.0, interrupted)
    assert status("--run", "--json", str(path)) == 130
    assert [row["number"] for row in json.loads(path.read_text())["claims"]] == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "99"], "claims are numbered from 1 to 61"),
        (["--only", "0", "--run"], "claims are numbered from 1 to 61"),
        (["--only", "-3", "--run"], "--only -3"),
        (["--only", "x"], "invalid int value"),
        (["--only", "--run"], "expected at least one argument"),
        (["--run", "--only", "5"], "no run shows this claim; there are 1, 2, 3"),
        (["--run", "--verdict", "not checkable"], "no run shows a claim of those"),
        (["--json", "x.json"], "--json goes with --run"),
        (["--run", "--json", "/no/such/folder/x.json"], "No such file or directory"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, capsys):
    assert status(*arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_without_run_the_list_says_which_are_measured(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert status("--only", "3", "60", "61") == 0
    printed = capsys.readouterr().out
    assert "measured by claims --run --only 60" in printed and "3 measured by --run" in printed


def test_a_kept_result_is_of_these_trials():
    """report/measured/claims.json, measured on a quiet machine: a figure that is told must be of what is run today."""
    path = Path(__file__).parents[2] / "report" / "measured" / "claims.json"
    rows = json.loads(path.read_text())["claims"]
    assert [row["number"] for row in rows] == list(experiments.claims.TRIALS)
    for row in rows:
        assert row["predicted"] == experiments.claims.TRIALS[row["number"]].says
    assert sum(row["came_out"] == "yes" for row in rows) >= 20
