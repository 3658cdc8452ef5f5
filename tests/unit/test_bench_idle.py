"""`bench idle`: a short window of a real engine in each arm, and what is claimed follows from the samples."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pytest

from evolution import cli
from experiments.bench import idle
from experiments.bench.idle_plot import draw


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    idle.add_arguments(parser)
    return parser.parse_args(list(arguments))


def cells_of(cores: list[float], block: list[float], spin: list[float]) -> dict:
    cells = {("peer", arm.name): idle.new_cell("peer", arm) for arm in idle.ARMS}
    cells["peer", "level"] |= {"cores": cores, "first": block, "first_after_window": block}
    cells["peer", "level, spin"] |= {"first": spin, "first_after_window": spin}
    return cells


@pytest.mark.parametrize(
    ("cores", "block", "verdicts"),
    [
        ([0.01] * 7, 0.0029, ("holds", "holds")),
        ([0.03] * 7, 0.0005, ("fails", "holds")),
        ([0.01] * 6 + [9.0], 0.0031, ("undecided", "fails")),
        ([0.01] * 5, 0.0005, ("undecided", "undecided")),  # too few engines for a verdict
    ],
)
def test_what_holds(cores: list[float], block: float, verdicts: tuple[str, str]) -> None:
    shifts = [0.001 * number for number in range(len(cores))]
    cells = cells_of(cores, [block + shift for shift in shifts], [0.002 + shift for shift in shifts])
    one = idle.later("peer", cells)
    assert one["first"]["values"] == pytest.approx([block - 0.002] * len(cores))
    assert one["first"]["median"] == pytest.approx(block - 0.002)
    assert one["verdicts"] == {
        "cores": verdicts[0],
        "first": verdicts[1],
        "first_after_window": verdicts[1],
    }


def test_a_request_that_the_trace_lost_is_named() -> None:
    assert idle.time_of(3, {3: 0.5}, "peer", idle.SPIN) == 0.5
    with pytest.raises(RuntimeError, match="bench idle: peer, level, spin: .* request r4"):
        idle.time_of(4, {3: 0.5}, "peer", idle.SPIN)


@pytest.mark.timeout(180)
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(idle, "FIRSTS", 3)
    result = idle.run(options("--repeats", "1", "--seconds", "0.5", "--stages", "peer"))
    cells = {cell["arm"]: cell for cell in result["cells"]}
    assert set(cells) == {"level", "level, spin", "era"}
    assert [len(cells[arm.name]["cores"]) for arm in idle.ARMS] == [1, 1, 1]
    for kind in ("first", "first_after_window", "firsts"):
        assert [len(cells[arm.name][kind]) for arm in idle.ARMS] == [1, 1, 0]
    (firsts,) = cells["level"]["firsts"]
    assert len(firsts) == 3 and cells["level"]["first"] == [np.median(firsts)]
    assert min(cells["level, spin"]["cores"]) > max(cells["level"]["cores"])
    assert min(cells["era"]["cores"]) > 0.3
    assert min(cells["level"]["first"]) > 0 and max(cells["level"]["first"]) < 1
    if shutil.which("perf") is None:
        assert cells["era"]["syscalls"] == [None]
    idle.show(result)
    said = capsys.readouterr().out
    assert "later than spinning" in said and "0.5 s without a request" in said
    assert all(Path(path).stat().st_size > 1000 for path in draw(result, tmp_path))


@pytest.mark.parametrize(
    ("said", "status", "count"),
    [
        ("4321,,raw_syscalls:sys_enter,5000,100.00,,", 0, 864.2),
        ("<not counted>,,raw_syscalls:sys_enter,0,100.00,,", 0, 0.0),
        ("<not supported>,,raw_syscalls:sys_enter,0,100.00,,", 0, None),
        ("event syntax error: 'raw_syscalls:sys_enter'", 129, None),
    ],
)
def test_what_perf_says(said: str, status: int, count: float | None) -> None:
    assert idle.counted_syscalls(said, status, 5.0) == count


def test_where_there_is_no_perf_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert idle.count_syscalls([1], 0.1) is None


@pytest.mark.parametrize(
    "arguments",
    [("--repeats", "0"), ("--seconds", "0"), ("--dp-size", "0"), ("--stages", "x"), ("--stages", "peer,peer")],
)
def test_bad_options_are_one_line(arguments: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "idle", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert arguments[0] in said and said.count("\n") == 1
