"""The answers that start engines come out as they say."""

from __future__ import annotations

import pytest

from evolution.cli import main


@pytest.mark.parametrize("name", ["self-test-1", "self-test-2", "self-test-3"])
def test_an_answer_runs_and_comes_out_as_it_says(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["history", "answers", name])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "as said" in printed and "not as said" not in printed
