"""The chapter's process counts, as `processes` predicts them; the conformance suite compares them with the OS."""

from __future__ import annotations

import dataclasses

import pytest

from common.args import EngineArgs
from evolution.cli import main
from evolution.stages import process_tree


def count(stage: str, tp: int, dp: int) -> int:
    return len(process_tree(EngineArgs(stage=stage, tp_size=tp, dp_size=dp)).walk())


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_counts_without_replicas(tp):
    assert count("rpyc", tp, 1) == (tp + 3 if tp > 1 else 3)
    assert count("broadcast", tp, 1) == tp + 2
    assert count("peer", tp, 1) == tp + 2


@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (2, 2), (4, 3)])
def test_counts_with_replicas(stage, tp, dp):
    assert count(stage, tp, dp) == dp * tp + 3


def test_names_are_unique_and_hold_each_rank_once(stage):
    args = EngineArgs(stage=stage, tp_size=2, dp_size=2)
    names = [node.name for node in process_tree(args).walk()]
    assert len(set(names)) == len(names)
    for label in ("DP0 TP0", "DP0 TP1", "DP1 TP0", "DP1 TP1"):
        assert sum(name.endswith(label) for name in names) == 1


def test_the_command_prints_what_would_run(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["processes", "--stage", "broadcast", "--model-path", "tiny", "--tp", "2", "--dp", "2"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "broadcast: 7 processes" in printed
    for node in process_tree(dataclasses.replace(EngineArgs(stage="broadcast"), tp_size=2, dp_size=2)).walk():
        assert node.name in printed
