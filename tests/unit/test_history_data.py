"""The facts of `history` and `claims`: whole, consistent with each other, and with what `processes` foretells."""

from __future__ import annotations

import re
from datetime import date

import pytest

from common.args import EngineArgs
from evolution.cli import main
from evolution.history import data
from evolution.history.answers import PAGES
from evolution.history.trees import MODELS, ProcessModel, Sizes
from evolution.history.verify import all_lines
from evolution.history_args import ANSWERS, VERDICTS
from evolution.stages import process_tree

SHAPES = [Sizes(tp, dp) for tp in (1, 2, 4, 8) for dp in (1, 2, 3)]
STAGE_OF = {
    "0.1.5": "rpyc",
    "0.1.17": "rpyc",
    "0.2.0 to 0.3.2": "broadcast",
    "0.3.3": "peer",
    "0.3.3.post1 to 0.4.1.post7": "peer",
    "today": "peer",
}


def formula_of(model: ProcessModel, sizes: Sizes) -> int:
    """The one formula whose case the sizes are."""
    values = {"T": sizes.tp, "D": sizes.dp, "P": sizes.pp}
    found = []
    for case, formula in model.formulas.items():
        condition = case.removesuffix(", DP attention").replace(" = ", " == ").replace(", ", " and ")
        if case.endswith("DP attention") == sizes.dp_attention and eval(condition, {}, values):
            found.append(eval(formula, {}, values))
    assert len(found) == 1, (model.releases, sizes)
    return found[0]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.releases)
def test_a_tree_has_as_many_processes_as_its_formula_and_its_stage_here(model):
    for sizes in SHAPES:
        if model.without_dp and sizes.dp > 1:
            with pytest.raises(ValueError, match="no data parallelism"):
                model.tree(sizes)
            continue
        count = len(model.tree(sizes).walk())
        assert count == formula_of(model, sizes)
        ours = process_tree(EngineArgs(stage=STAGE_OF[model.releases], tp_size=sizes.tp, dp_size=sizes.dp))
        assert count == len(ours.walk())


@pytest.mark.parametrize(("sizes", "count"), [(Sizes(4, 2, 2), 19), (Sizes(4, 2, 2, True), 11), (Sizes(2, 1, 3), 8)])
def test_today_has_stages_and_attention_replicas(sizes, count):
    assert len(MODELS[-1].tree(sizes).walk()) == formula_of(MODELS[-1], sizes) == count
    with pytest.raises(ValueError, match="no pipeline parallelism"):
        MODELS[2].tree(Sizes(2, 1, 2))


def test_every_rank_of_a_tree_has_a_name_of_its_own():
    for model in MODELS[1:]:
        names = [node.name for node in model.tree(Sizes(4, 1 if model.without_dp else 2)).walk()]
        assert len(set(names)) == len(names)
    names = [node.name for node in MODELS[-1].tree(Sizes(4, 2, 2, True)).walk()]
    assert [name for name in names if name.startswith("DP1 ")] == [
        "DP1 PP0 TP2",
        "DP1 PP0 TP3",
        "DP1 PP1 TP2",
        "DP1 PP1 TP3",
    ]


def test_listings_are_in_the_order_of_their_days_and_hold_what_the_text_says():
    found = data.listings()
    days = [date.fromisoformat(listing.date) for listing in found.values()]
    assert days == sorted(days)
    assert set(data.SHOWN) < found.keys()
    assert found["0.4.0"].files["scheduler.py"] == 1500
    assert found["0.3.3.post1"].files["tp_worker.py"] == 128
    assert not [name for name in found["0.3.3"].files if "controller" in name]
    assert all(count > 0 for listing in found.values() for count in listing.files.values())


def test_lines_lie_within_the_files_that_the_listings_count():
    for line in all_lines():
        assert line.version in data.listings() and 1 <= line.first <= line.last and line.holds.strip()
        if line.file.startswith("srt/managers/"):
            assert line.last <= data.listings()[line.version].files[line.file.removeprefix("srt/managers/")]


def test_commits_are_seven_in_the_order_of_their_days_and_name_their_pull_request():
    commits = data.commits()
    assert len(commits) == 7
    assert [commit.date for commit in commits] == sorted(commit.date for commit in commits)
    for commit in commits:
        assert re.fullmatch("[0-9a-f]{10}", commit.hash) and commit.title.endswith(f" (#{commit.pr})")
        assert data.listings()[commit.release].date >= commit.date


def test_constants_name_releases_of_the_listings_and_where_they_were_read():
    for row in data.constants():
        assert row.values.keys() <= data.listings().keys() and row.lines, row.name
        assert {line.version for line in row.lines} <= row.values.keys(), row.name


def test_what_both_tell_of_an_era_is_the_same():
    """`history constants` was read from the wheels, the stages' `constants.py` is what runs."""
    from evolution.broadcast_controller.constants import V0_2_0
    from evolution.peer_schedulers.constants import V0_4_0
    from evolution.rpyc_router.constants import V0_1_5, V0_1_17

    rows = {row.name: row.values for row in data.constants()}
    for era in (V0_1_5, V0_1_17, V0_2_0, V0_4_0):
        assert rows["stream_interval"][era.version] == str(era.rules.stream_interval)
        assert rows["decode steps a turn, at most"][era.version].split()[0] == str(era.rules.decode_steps)
    for era in (V0_1_5, V0_1_17):
        assert rows["sleep after a turn with output"][era.version].startswith(f"{era.sleep_after_output * 1e3:g} ms")
        assert rows["sleep after a turn without output"][era.version] == f"{era.sleep_every_turn * 1e3:g} ms"
        assert rows["timeout of an rpyc call"][era.version] == f"{era.sync_request_timeout:g} s"
    for era in (V0_2_0, V0_4_0):
        assert rows["how rank 0's list becomes a tensor"][era.version] == era.broadcast


def test_claims_are_numbered_judged_and_have_evidence():
    claims = data.claims()
    assert [claim.number for claim in claims] == list(range(1, len(claims) + 1))
    for claim in claims:
        assert claim.verdict in VERDICTS and claim.claim.endswith(".") and claim.because.endswith(".")
        assert len(set(claim.lines)) == len(claim.lines) and claim.threads == sorted(claim.threads)
    # On listings alone, on arithmetic, or on today's code.
    assert [claim.number for claim in claims if not claim.lines and not claim.threads] == [28, 52, 53, 55]
    assert sum(claim.experiment is not None for claim in claims) >= 20
    assert {number for row in data.tradeoffs() for number in row.corrects} <= {c.number for c in claims}
    assert all(claims[number - 1].verdict != "wrong" for number in (1, 4, 18, 19, 52))


@pytest.mark.parametrize(
    "claim", [claim for claim in data.claims() if claim.experiment], ids=lambda claim: claim.number
)
def test_the_command_of_an_experiment_is_one_that_the_command_line_takes(claim, monkeypatch):
    """Or refuses, where that is what it should show."""
    seen = []
    monkeypatch.setattr("evolution.cli._dispatch", lambda namespace: seen.append(namespace) or 0)
    with pytest.raises(SystemExit) as ended:
        main(claim.experiment.command.split())
    if "is refused" in claim.experiment.shows and not seen:
        assert ended.value.code == 2
    else:
        assert ended.value.code == 0 and seen


def test_every_answer_of_the_command_line_has_a_page():
    assert list(PAGES) == list(ANSWERS)


@pytest.mark.parametrize("name", ["self-test-4", "exercise-1", "exercise-2", "exercise-3"])
def test_an_answer_without_an_engine_comes_out_as_it_says(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["history", "answers", name])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "as said" in printed and "not as said" not in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["history", "figures"], "--out DIR"),
        (["history", "--verify"], "needs --wheels DIR"),
        (["history", "--verify", "--wheels", "/no/such"], "no such folder"),
        (["history", "--verify", "--repo", "/"], "not a git repository"),
        (["history", "trees", "--tp-size", "0"], "at least 1"),
        (["history", "trees", "--tp-size", "2000"], "at most 1024"),
        (["history", "trees", "--out", "/tmp"], "--out goes with"),
        (["history", "commits", "exercise-2"], "history answers exercise-2"),
        (["history", "commits", "--repo", "."], "go with --verify"),
        (["history", "listings", "--verify", "--wheels", "."], "goes without WHAT"),
        (["history", "trees", "--tp-size", "x"], "invalid int value"),
        (["history", "histories"], "invalid choice"),
        (["claims", "--verdict", "maybe"], "invalid choice"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert complaint in said and said.count("\n") == 1


def test_history_prints_all_of_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        main(["history"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    for word in ("v0.3.0", "policy_scheduler.py", "0463f7fb52", "ControllerMulti", "stream_interval", "Trade-offs"):
        assert word in printed
    assert "0.2.0 to 0.4.0: 1" in printed
    assert "0.2.0 to 0.3.2: 7 processes at T = 2, D = 2" in printed


def test_claims_are_printed_by_verdict(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        main(["claims", "--verdict", "not checkable"])
    printed = capsys.readouterr().out
    wanted = [claim for claim in data.claims() if claim.verdict == "not checkable"]
    assert f"{len(wanted)} claims: 0 true, 0 partly, 0 wrong, {len(wanted)} not checkable" in printed
    assert "#646" in printed


def test_the_figures_are_drawn(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["history", "figures", "--out", str(tmp_path / "new")])
    assert ended.value.code == 0
    written = {path.name: path.stat().st_size for path in (tmp_path / "new").iterdir()}
    assert set(written) == {"three-stages.png", "three-stages.svg", "strip.png", "strip.svg"}
    assert min(written.values()) > 20_000
