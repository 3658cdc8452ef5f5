"""The students' tree: the engine, the labs, the conformance suite; no references, no hidden tests, no wrong solutions.

It is built beside its place, looked through for whatever must not be in it, and moved there only then.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from evolution.labs.catalog import LABS, all_labs
from evolution.labs.leaks import known_lines, leaks, secrets, text_files, written_tasks

PROJECT = LABS.parents[1]
INSTRUCTOR = LABS.parent / "labs_instructor"
TREES = ("common", "evolution", "experiments", "report")
# Paths of what a student's tree does without.
LEFT_OUT = ("experiments/labs_instructor", "experiments/notebooks", "report/measured", "report/notebooks")
# Of the tests only what judges a stage of one's own.
TESTS = (
    "tests/__init__.py",
    "tests/conftest.py",
    "tests/conformance",
    "tests/examples/__init__.py",
    "tests/examples/pipe_stage.py",
    "tests/helpers/__init__.py",
    "tests/helpers/reference.py",
    "tests/helpers/workloads.py",
)
TOP = ("pyproject.toml", "LICENSE", "CHANGELOG.md")
SUFFIXES = {".py", ".md", ".toml", ".json", ".j2"}
MARK = ".labs-release"  # lies in a tree that this command wrote


def release(out: Path, force: bool, source: Path = PROJECT) -> int:
    """0; or 1 where something would leak, which is printed, and nothing is written. ValueError of one line for bad
    input. source: the checkout that is released."""
    instructor = source / "experiments/labs_instructor"
    if not instructor.is_dir():
        raise ValueError("experiments/labs_instructor is not there: this tree is a release itself")
    check_place(out, force)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        tree = Path(folder) / "tree"
        build(tree, source)
        if problems := look_through(tree, source):
            print("\n".join(problems), file=sys.stderr)
            print(f"nothing was released: {len(problems)} things would be given away", file=sys.stderr)
            return 1
        if out.exists():
            shutil.rmtree(out)
        tree.rename(out)
    print(f"{sum(1 for path in out.rglob('*') if path.is_file())} files in {out}; begin with its README.md")
    return 0


def check_place(out: Path, force: bool) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ValueError(f"--out {out}: not a folder")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MARK).is_file():
        raise ValueError(f"--out {out}: not empty, and not an earlier release")
    if not force:
        raise ValueError(f"--out {out}: there is a release already; --force replaces it, with what was changed in it")


def build(tree: Path, source: Path) -> None:
    def ignore(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not _is_released(Path(folder) / name, source)]

    for name in (*TREES, *TESTS):
        place = tree / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, ignore=ignore)
        else:
            shutil.copyfile(source / name, place)
    for name in TOP:
        shutil.copyfile(source / name, tree / name)
    for path in (source / "experiments/labs_instructor/release").iterdir():
        shutil.copyfile(path, tree / path.name)
    (tree / MARK).touch()


def _is_released(path: Path, source: Path) -> bool:
    if path.name.startswith((".", "__pycache__")) or path.relative_to(source).as_posix() in LEFT_OUT:
        return False
    return path.is_dir() or path.suffix in SUFFIXES


def look_through(tree: Path, source: Path = PROJECT) -> list[str]:
    """What the tree must not have, and of skeletons what they should leave open: one line each; [] if all is well."""
    instructor, labs = source / "experiments/labs_instructor", tree / "experiments/labs"
    known = known_lines(tree, labs)
    hidden: dict[str, str] = {}
    problems = []
    for lab in all_labs(source / "experiments/labs"):
        hidden |= secrets(lab, instructor / lab.name, known)
        problems += [f"{lab.name}: its skeleton does not leave {task} open" for task in written_tasks(lab)]
    tops = [path for path in tree.iterdir() if path.is_file()]
    return problems + leaks(tree, [*text_files(labs), *tops], hidden, instructor)
