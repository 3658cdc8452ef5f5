"""`history --verify`, against wheels and clones made here with the files that the listings name."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from evolution.cli import main
from evolution.history import clone, data
from evolution.history.clone import FileEvent, FileLength, check_history
from evolution.history.data import Commit, Line
from evolution.history.outcomes import AGREES, DIFFERS, UNKNOWN
from evolution.history.verify import Facts, all_facts, verify

VERSION = "0.3.0"
HELD = Line(VERSION, "srt/managers/tp_worker.py", 930, 935, "list(serialized_data)")
FACTS = Facts({VERSION: data.listings()[VERSION]}, {VERSION: [HELD]})


def files_of(version: str) -> dict[str, str]:
    """path below sglang/ -> text, as long as the listing says, with HELD where it belongs."""
    texts = {}
    for name, count in data.listings()[version].files.items():
        lines = [f"line {number}" for number in range(1, count + 1)]
        if name == "tp_worker.py" and count > HELD.last:
            lines[HELD.last - 1] = f"    {HELD.holds}"
        texts[f"srt/managers/{name}"] = "\n".join(lines) + "\n"
    return texts | {"srt/server.py": "x = 1\n"}


def make_wheel(folder: Path, version: str, files: dict[str, str]) -> Path:
    path = folder / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"sglang/{name}", text)
        archive.writestr(f"sglang-{version}.dist-info/METADATA", "Name: sglang\n")
    return path


def found(outcomes: list, word: str) -> tuple[str, str]:
    (row,) = [row for row in outcomes if word in row.what]
    return row.outcome, row.detail


def test_a_wheel_as_published_agrees(tmp_path):
    make_wheel(tmp_path, VERSION, files_of(VERSION))
    outcomes = verify(FACTS, tmp_path, None)
    assert found(outcomes, "wheel: managers/") == (AGREES, "8 files, 3540 lines")
    assert found(outcomes, "lines referred to") == (AGREES, "1 of 1")
    assert found(outcomes, "commits")[0] == UNKNOWN
    assert DIFFERS not in [row.outcome for row in outcomes]


@pytest.mark.parametrize(
    ("change", "word", "detail"),
    [
        (lambda files: files.pop("srt/managers/io_struct.py"), "managers/", "has no io_struct.py"),
        (lambda files: files.update({"srt/managers/new.py": ""}), "managers/", "has new.py too"),
        (
            lambda files: files.update({"srt/managers/io_struct.py": "1\n"}),
            "managers/",
            "io_struct.py: 1 lines, not 304",
        ),
        (lambda files: files.update({HELD.file: "\n" * 953}), "lines referred", "tp_worker.py:930-935 does not hold"),
    ],
)
def test_a_wheel_that_differs_is_told_and_fails(tmp_path, capsys, monkeypatch, change, word, detail):
    files = files_of(VERSION)
    change(files)
    make_wheel(tmp_path, VERSION, files)
    outcome, said = found(verify(FACTS, tmp_path, None), word)
    assert outcome == DIFFERS and detail in said
    monkeypatch.setattr("evolution.history_command.all_facts", lambda: FACTS)
    with pytest.raises(SystemExit) as ended:
        main(["history", "--verify", "--wheels", str(tmp_path)])
    assert ended.value.code == 1
    assert "differs" in capsys.readouterr().out


def test_wheels_that_are_not_there_are_not_checked_and_no_failure(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        main(["history", "--verify", "--wheels", str(tmp_path)])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "0 agrees, 0 differs" in printed
    assert all(f"sglang=={version}" in printed.replace("\n", "") for version in all_facts().listings)


def test_a_file_that_is_no_wheel_is_one_line(tmp_path, capsys):
    (tmp_path / "sglang-0.1.5-py3-none-any.whl").write_text("<html>")
    with pytest.raises(SystemExit) as ended:
        main(["history", "--verify", "--wheels", str(tmp_path)])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "is not a wheel" in said and said.count("\n") == 1


# ---------------------------------------------------------------------- a clone


def git(repo: Path, *arguments: str, day: str = "2024-09-29") -> str:
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    days = {"GIT_AUTHOR_DATE": f"{day}T12:00:00+0000", "GIT_COMMITTER_DATE": f"{day}T12:00:00+0000"}
    quiet = {"HOME": str(repo), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(repo), *arguments]
    return subprocess.run(command, env=names | days | quiet, check=True, capture_output=True, text=True).stdout.strip()


def commit(repo: Path, files: dict[str, str], title: str, day: str, gone: str = "") -> str:
    """Short hash of a commit that writes `files` below python/sglang/ and removes `gone`."""
    for name, text in files.items():
        path = repo / "python/sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if gone:
        (repo / "python/sglang" / gone).unlink()
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--message", title, day=day)
    return git(repo, "rev-parse", "--short=10", "HEAD")


@pytest.fixture
def repo(tmp_path) -> tuple[Path, list[str]]:
    """v0.3.0, then a commit that takes the controller away and adds 3 lines of scheduler.py, and its hashes."""
    git(tmp_path, "init", "--quiet")
    first = commit(tmp_path, files_of(VERSION), "Release (#1)", "2024-09-03")
    git(tmp_path, "tag", f"v{VERSION}")
    new = {"srt/managers/scheduler.py": "1\n2\n3\n"}
    second = commit(tmp_path, new, "Improve (#2)", "2024-09-29", gone="srt/managers/controller_multi.py")
    return tmp_path, [first, second]


def test_a_clone_is_read_at_the_tag(repo):
    outcomes = verify(FACTS, None, repo[0])
    assert found(outcomes, "tag: managers/") == (AGREES, "8 files, 3540 lines")
    assert found(outcomes, "lines referred to") == (AGREES, "1 of 1")
    assert not (repo[0] / "python/sglang/srt/managers/controller_multi.py").exists()  # what is checked out is newer


def test_a_clone_without_the_tags_and_commits_is_told_so(repo):
    facts = Facts({"0.1.5": data.listings()["0.1.5"]}, {})
    outcomes = verify(facts, None, repo[0])
    assert found(outcomes, "0.1.5, tag") == (UNKNOWN, "no tag v0.1.5 in the clone")
    for one in data.commits():
        assert found(outcomes, f"commit {one.hash}") == (UNKNOWN, "no such commit in this clone")


def test_commits_are_compared_by_day_title_and_size(repo):
    path, (_, second) = repo
    deleted = data.listings()[VERSION].files["controller_multi.py"]
    right = Commit(second, "2024-09-29", "Improve (#2)", 2, "0.3.3", "", (3, deleted))
    wrong = Commit(second, "2024-09-30", "Improve (#2)", 2, "0.3.3", "", (4, deleted))
    outcomes = check_history(path, [right])
    assert found(outcomes, f"commit {second}")[0] == AGREES
    assert found(outcomes, f"size of {second}") == (AGREES, f"3 lines added, {deleted} deleted")
    outcomes = check_history(path, [wrong])
    assert found(outcomes, f"commit {second}") == (DIFFERS, "2024-09-29 Improve (#2); here: 2024-09-30 Improve (#2)")
    assert found(outcomes, f"size of {second}")[0] == DIFFERS


def test_when_a_file_came_and_went_and_how_long_it_was(repo, monkeypatch):
    path, (first, second) = repo
    scheduler, multi = (clone.MANAGERS + name for name in ("scheduler.py", "controller_multi.py"))
    events = (FileEvent("A", scheduler, second), FileEvent("D", multi, first))
    monkeypatch.setattr(clone, "EVENTS", events)
    monkeypatch.setattr(clone, "LENGTHS", (FileLength(second, scheduler, 3), FileLength(second, scheduler, 4)))
    outcomes = check_history(path, [])
    assert [row.outcome for row in outcomes] == [AGREES, DIFFERS, AGREES, DIFFERS]
    assert outcomes[3].detail == f"{second} 2024-09-29 Improve (#2); here: {first}"


def test_an_answer_looks_into_the_clone_and_the_wheels(repo, capsys, monkeypatch):
    path, (_, second) = repo
    monkeypatch.setenv("COLUMNS", "300")
    wheels = path / "wheels"
    wheels.mkdir()
    files = files_of("0.3.2")
    files["srt/managers/controller_multi.py"] = "queue = multiprocessing.Queue()\n"
    make_wheel(wheels, "0.3.2", files)
    with pytest.raises(SystemExit) as ended:
        main(["history", "answers", "exercise-2", "--wheels", str(wheels), "--repo", str(path)])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"controller_multi.py was deleted by: {second} 2024-09-29 Improve (#2)" in printed
    assert "data_parallel_controller.py was added by: no commit of this clone" in printed
    assert "multiprocessing.Queue" in printed


def test_an_answer_that_the_wheels_contradict_fails(tmp_path, capsys):
    make_wheel(tmp_path, "0.3.3", files_of("0.3.3.post1"))
    with pytest.raises(SystemExit) as ended:
        main(["history", "answers", "exercise-2", "--wheels", str(tmp_path)])
    assert ended.value.code == 1
    assert "not as said" in capsys.readouterr().out
