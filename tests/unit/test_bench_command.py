"""`python -m evolution bench`: the options reach the bench, bad ones are one line, the result file is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from evolution import cli
from evolution.bench_command import write_result


@pytest.fixture
def bench(monkeypatch) -> ModuleType:
    """A bench of a name that the command line knows, with one option."""
    module = ModuleType("experiments.bench.radix", doc="Measures nothing.")
    module.add_arguments = lambda parser: parser.add_argument("--size", type=int, default=3)
    module.run = lambda options: {"size": options.size, "verdict": "holds" if options.size < 10 else "undecided"}
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
    assert (result["size"], result["verdict"]) == (4, "holds")
    assert result["environment"]["cpu_count"] >= 1


@pytest.mark.parametrize(("verdict", "code"), [("holds", 0), (None, 0), ("undecided", 1), ("fails", 1)])
def test_status_says_the_verdict(bench, verdict, code):
    bench.run = lambda options: {"size": 4, "verdict": verdict}
    assert status("radix") == code


def test_a_result_names_its_pictures_without_their_folder(bench, tmp_path, monkeypatch, capsys):
    bench.add_arguments = lambda parser: parser.add_argument("--out")
    bench.run = lambda options: {"size": 4, "verdict": None}
    plot = ModuleType("experiments.bench.radix_plot")
    plot.draw = lambda result, folder: [str(folder / "radix.png")]
    monkeypatch.setitem(sys.modules, plot.__name__, plot)
    assert status("radix", "--out", str(tmp_path), "--json", str(tmp_path / "result.json")) == 0
    assert json.loads((tmp_path / "result.json").read_text())["pictures"] == ["radix.png"]
    assert f"picture: {tmp_path}/radix.png" in capsys.readouterr().out


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


def test_a_result_goes_where_its_path_leads(tmp_path):
    (tmp_path / "link.json").symlink_to("target.json")
    write_result(tmp_path / "link.json", {"a": 1})
    write_result(tmp_path / "link.json", {"a": 2})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "target.json").read_text()) == {"a": 2}
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OSError, match="No space left on device"):
        write_result(Path("/dev/full"), {"a": 1})
    assert Path("/dev/full").is_char_device()
