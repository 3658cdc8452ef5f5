"""`bench idle`: a short window of a real engine in each arm, and what is claimed follows from the samples."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from evolution import cli
from experiments.bench import idle


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    idle.add_arguments(parser)
    return parser.parse_args(list(arguments))


@pytest.mark.parametrize(
    ("cores", "block", "holds"),
    [(0.01, 0.0029, True), (0.03, 0.0029, False), (0.01, 0.0031, False), (0.01, 0.0005, True)],
)
def test_what_holds(cores: float, block: float, holds: bool) -> None:
    cells = {("peer", arm.name): idle.new_cell("peer", arm) for arm in idle.ARMS}
    cells["peer", "level"] |= {"cores": [cores, cores, 9.0], "first": [block, block + 0.001, block + 0.002]}
    cells["peer", "level, spin"]["first"] = [0.002, 0.003, 0.004]
    one = idle.later("peer", cells)
    assert one["differences"] == pytest.approx([block - 0.002] * 3)
    assert one["median"] == pytest.approx(block - 0.002)
    assert one["holds"] == holds


@pytest.mark.timeout(180)
def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    result = idle.run(options("--repeats", "1", "--seconds", "0.5", "--stages", "peer", "--out", str(tmp_path)))
    cells = {cell["arm"]: cell for cell in result["cells"]}
    assert set(cells) == {"level", "level, spin", "era"}
    assert [len(cells[arm.name]["cores"]) for arm in idle.ARMS] == [arm.windows for arm in idle.ARMS]
    assert [len(cells[arm.name]["first"]) for arm in idle.ARMS] == [2, 2, 0]
    assert min(cells["level, spin"]["cores"]) > max(cells["level"]["cores"])
    assert min(cells["era"]["cores"]) > 0.3
    assert min(cells["level"]["first"]) > 0 and max(cells["level"]["first"]) < 1
    if shutil.which("perf") is None:
        assert cells["era"]["syscalls"] == [None]
    idle.show(result)
    said = capsys.readouterr().out
    assert "later than spinning" in said and "0.5 s without a request" in said
    assert all(Path(path).stat().st_size > 1000 for path in result["pictures"])


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
    counting = subprocess.Popen(
        ["sh", "-c", f'printf %s "$0" >&2; exit {status}', said], stderr=subprocess.PIPE, text=True
    )
    assert idle.counted_syscalls(counting, 5.0) == count


def test_where_there_is_no_perf_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert idle.start_counting_syscalls([1], 0.1) is None
    assert idle.counted_syscalls(None, 0.1) is None


@pytest.mark.parametrize("arguments", [("--repeats", "0"), ("--seconds", "0"), ("--dp-size", "0"), ("--stages", "x")])
def test_bad_options_are_one_line(arguments: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "idle", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert arguments[0] in said and said.count("\n") == 1
