"""`compare` with real engines: what it keeps, how it goes on after an interruption, what it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evolution.compare_command import remaining
from experiments.compare.metrics import COUNTS, TIMES, cpu_us, distribute_us, turn_count
from experiments.compare.records import RUNS, read_plan, read_runs
from report.comparison import era_pairs, ratios, stage_pairs, values
from tests.conftest import descendants

SMALL = ["--device", "sim", "--num-prompts", "4", "--input-len", "16", "--output-len", "24", "--rounds", "2"]


def compare(folder: Path, *options: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    small = [] if "--resume" in options else SMALL
    command = [sys.executable, "-m", "evolution", "compare", *small, "--out", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "out"
    result = compare(folder, "--constants", "level,era", "--tp-size", "2", "--repeats", "2")
    assert result.returncode == 0, result.stderr
    assert "identical in every run" in " ".join(result.stdout.split())
    return folder


def test_every_arm_has_its_runs_in_turn(folder: Path) -> None:
    plan, runs = read_plan(folder), read_runs(folder)
    assert len(plan.arms) == 6
    assert [run.order for run in runs] == list(range(12))
    assert [(run.repeat, run.arm) for run in runs] == remaining(plan, [])
    assert len({run.tokens for run in runs}) == 1
    assert plan.environment["command"].startswith("python -m evolution compare --device sim")


def test_a_run_holds_what_there_was_to_measure(folder: Path) -> None:
    for run in read_runs(folder):
        assert len(run.ttft_us) == len(run.tpot_us) == len(run.e2e_us) == 8
        assert run.output_tokens == 8 * 24
        assert {process.name for process in run.processes} >= {"main", "evo-detokenizer"}
        assert len(run.processes) == (5 if run.arm.stage == "rpyc" else 4)
        assert all(process.role for process in run.processes)
        [main] = [process for process in run.processes if process.parent == 0]
        assert {process.parent for process in run.processes} - {0} <= {process.pid for process in run.processes}
        assert main.pid not in {process.pid for process in run.processes if process is not main}
        assert turn_count(run) >= 2 * 24 / 10
        assert cpu_us(run) > 0
        assert distribute_us(run) is not None
        assert {strip.process for strip in run.strip} >= {"main", "evo-detokenizer"}


def test_threads_add_up_to_their_process(folder: Path) -> None:
    """But for threads that ended meanwhile, and what the kernel has not booked yet."""
    for run in read_runs(folder):
        for process in run.processes:
            of_threads = sum(thread.cpu_us for thread in process.threads)
            assert of_threads == pytest.approx(process.cpu_us, rel=0.1, abs=9000), process.name


def test_the_tables_are_whole(folder: Path) -> None:
    plan, runs = read_plan(folder), read_runs(folder)
    assert len(stage_pairs(plan)) == 4
    assert len(era_pairs(plan)) == 3
    assert {value.arm for value in values(plan, runs, COUNTS)} == set(plan.arms)
    found = ratios(plan, runs, stage_pairs(plan), TIMES)
    assert {one.metric.name for one in found} >= {"TTFT", "TPOT", "control plane of a turn", "CPU time a turn"}
    assert all(len(one.ratio["pairs"]) == 2 for one in found)


def test_a_whole_comparison_is_not_run_again_and_takes_no_other_options(folder: Path) -> None:
    options = ("--constants", "level,era", "--tp-size", "2")
    before = (folder / RUNS).read_bytes()
    other = compare(folder, *options, "--repeats", "2")
    assert other.returncode == 2 and "--resume" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    refused = compare(folder, "--tp-size", "4", "--resume")
    assert refused.returncode == 2 and "--tp-size does not go with --resume" in refused.stderr
    again = compare(folder, "--resume")
    assert again.returncode == 0, again.stderr
    assert (folder / RUNS).read_bytes() == before


def test_an_interrupted_comparison_keeps_what_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options = ["--stages", "peer,rpyc", "--repeats", "2"]
    command = [sys.executable, "-m", "evolution", "compare", *SMALL, *options, "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / RUNS).exists() or (folder / RUNS).read_bytes().count(b"\n") < 1:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # SIGINT is ignored below a shell's background job
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "--resume` goes on" in errors and "Traceback" not in errors
    kept = read_runs(folder)
    assert 1 <= len(kept) < 4
    assert not descendants()
    with (folder / RUNS).open("ab") as file:  # as a kill in the middle of writing leaves it
        file.write(b'{"arm":{"stage":"peer"')
    result = compare(folder, "--resume")
    assert result.returncode == 0, result.stderr
    runs = read_runs(folder)
    assert runs[: len(kept)] == kept
    assert len({(run.repeat, run.arm) for run in runs}) == len(runs) == 4
    more = compare(folder, "--resume", "--repeats", "3")
    assert more.returncode == 0, more.stderr
    assert read_plan(folder).repeats == 3
    assert read_runs(folder)[:4] == runs
    assert {(run.repeat, run.arm) for run in read_runs(folder)[4:]} == {(2, run.arm) for run in runs}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stages", "peer,none"], "--stages 'none'"),
        (["--tp-size", "1,two"], "whole numbers"),
        (["--constants", "old"], "--constants 'old'"),
        (["--scheduling", "both"], "--scheduling 'both'"),
        (["--repeats", "0"], "--repeats"),
        (["--rounds", "0"], "--rounds"),
        (["--request-rate", "nan"], "--request-rate"),
        (["--input-len", "100000"], "100000"),
        (["--device", "tpu"], "--device"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    result = compare(tmp_path / "out", *options)
    assert result.returncode == 2
    assert words in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_one_line() -> None:
    result = compare(Path("/proc/nothing"))
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
