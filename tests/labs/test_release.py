"""The students' tree: nothing of references and hidden tests is in it, and what is planted there is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evolution.labs.catalog import Lab
from evolution.labs.leaks import code_lines, reference_lines
from evolution.labs.release import MARK, PROJECT, build, look_through, release
from tests.labs.shared import ALL, INSTRUCTOR, instructor


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "tree"
    build(folder, PROJECT)
    return folder


def test_nothing_leaks(tree: Path) -> None:
    assert look_through(tree) == []
    assert not [path for path in tree.rglob("*") if "instructor" in path.name or path.name in ("wrong", "reference")]
    assert {path.name for path in tree.iterdir()} == {
        *("common", "evolution", "experiments", "report", "tests", "README.md", "Makefile", "pyproject.toml"),
        *("LICENSE", "CHANGELOG.md", MARK),
    }


@pytest.mark.parametrize("lab", ALL, ids=lambda lab: lab.name)
def test_there_is_something_to_find(lab: Lab) -> None:
    """Else the test above could not fail."""
    for name in lab.files:
        assert len(reference_lines(instructor(lab) / "reference" / name, lab.folder / name)) >= 3
    assert len(code_lines(instructor(lab) / "test_hidden.py")) >= 10


def with_planted(tree: Path, texts: dict[Path, str]) -> list[str]:
    """What is found when each text has been put at the end of its file, which is taken back afterwards."""
    before = {place: place.read_text() if place.exists() else None for place in texts}
    for place, text in texts.items():
        place.write_text((before[place] or "") + text)
    found = look_through(tree)
    for place, text in before.items():
        if text is None:
            place.unlink()
        else:
            place.write_text(text)
    return found


@pytest.mark.parametrize("lab", ALL, ids=lambda lab: lab.name)
def test_what_is_planted_is_found(tree: Path, lab: Lab) -> None:
    """A line of a reference in a handout, a hidden test among the public ones, whole files under other names."""
    reference = instructor(lab) / "reference" / lab.files[0]
    line = sorted(reference_lines(reference, lab.folder / lab.files[0]) - known_to_all(tree))[0]
    labs = tree / "experiments/labs" / lab.name
    texts = {
        labs / "README.md": f"\nFor example `{line}`.\n",
        labs / "test_lab.py": (instructor(lab) / "test_hidden.py").read_text(),
        tree / "common/more.py": (instructor(lab) / "test_hidden.py").read_text(),
        tree / "experiments/bench/answer.txt": reference.read_text(),
    }
    found = with_planted(tree, texts)
    for name, what in (
        (f"{lab.name}/README.md", line),
        (f"{lab.name}/test_lab.py", "def test_"),
        ("common/more.py", "is "),
        ("bench/answer.txt", "is "),
    ):
        assert any(name in said and what in said for said in found), f"not found in {name}"


def known_to_all(tree: Path) -> set[str]:
    return {line.strip() for path in tree.rglob("*.py") for line in path.read_text().splitlines()}


def test_a_lab_that_was_solved_in_place_is_not_released(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "checkout"
    source.mkdir()
    for path in PROJECT.iterdir():
        if path.name not in ("experiments", "report", ".git", ".venv") and not path.name.startswith("."):
            (source / path.name).symlink_to(path)
    copy("experiments", source)
    (source / "report").mkdir()
    lab = ALL[0]
    solved = (instructor(lab) / "reference/solution.py").read_text()
    (source / "experiments/labs" / lab.name / "solution.py").write_text(solved)
    assert release(tmp_path / "out", force=False, source=source) == 1
    said = capsys.readouterr().err
    assert f"{lab.name}: its skeleton does not leave {lab.tasks[0].name} open" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkout"]  # no half-made tree is left


def copy(name: str, source: Path) -> None:
    subprocess.run(["cp", "-r", str(PROJECT / name), str(source)], check=True)


def test_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "out"
    assert release(out, force=False) == 0
    assert "begin with its README.md" in capsys.readouterr().out
    (out / "mine.txt").write_text("a student's")
    with pytest.raises(ValueError, match="there is a release already; --force replaces it"):
        release(out, force=False)
    assert release(out, force=True) == 0
    assert not (out / "mine.txt").exists()
    with pytest.raises(ValueError, match="not empty, and not an earlier release"):
        release(tmp_path, force=True)
    with pytest.raises(ValueError, match="not a folder"):
        release(out / "README.md", force=True)


def test_the_tree_works_by_itself(tree: Path, tmp_path: Path) -> None:
    """Its own packages are imported; a lab is graded; and it is no place to release from."""
    lab = ALL[0]
    work = {"cwd": tree, "env": {**os.environ, "PYTHONPATH": str(tree)}, "capture_output": True, "text": True}

    def labs(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "evolution", "labs", *command], **work)

    listed = labs("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert all(lab.title[:20] in listed.stdout for lab in ALL)
    task = lab.tasks[0].short
    graded = labs("grade", "0", "--task", task, "--solution", str(INSTRUCTOR / lab.name / "reference"))
    assert graded.returncode == 0, graded.stdout + graded.stderr
    refused = labs("release", "--out", str(tmp_path / "out"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "this tree is a release itself" in refused.stderr
