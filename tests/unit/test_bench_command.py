"""`python -m evolution bench`: the options reach the bench, bad ones are one line, the result file is written."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from evolution import cli


@pytest.fixture
def bench(monkeypatch) -> ModuleType:
    """A bench of a name that the command line knows, with one option."""
    module = ModuleType("experiments.bench.radix", doc="Measures nothing.")
    module.add_arguments = lambda parser: parser.add_argument("--size", type=int, default=3)
    module.run = lambda options: {"size": options.size, "holds": options.size < 10}
    module.show = lambda result: print(f"size {result['size']}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *arguments])
    return caught.value.code


def test_the_result_goes_to_the_terminal_and_to_the_file(bench, tmp_path, capsys):
    path = tmp_path / "result.json"
    assert status("radix", "--size", "4", "--json", str(path)) == 0
    assert "size 4" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert (result["size"], result["holds"]) == (4, True)
    assert result["environment"]["cpu_count"] >= 1


def test_a_figure_that_does_not_hold_is_status_1(bench):
    assert status("radix", "--size", "40") == 1


def test_bad_input_is_one_line_and_status_2(bench, capsys):
    for arguments in (
        ("nothing",),
        ("radix", "--size", "many"),
        ("radix", "--what"),
        ("radix", "--json", "/no/such/folder"),
        ("planning", "--out", "/proc/x"),
        ("startup", "--out", __file__),
    ):
        assert status(*arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_help_is_that_of_the_bench(bench, capsys):
    assert status("radix", "--help") == 0
    shown = capsys.readouterr().out
    assert "--size" in shown and "Measures nothing." in shown
