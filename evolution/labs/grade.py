"""Run a lab's tests on a solution, in processes of their own, and give points.

```
 labs grade ── pytest (session and group of its own) ── whatever the tests and the solution start
                 └─ plugin.py writes what happens ──> results file <── read when pytest has left, or its time is over
```

A copy of the lab's folder, with the solution's files put over it, lies in a temporary folder as a top-level package of
the lab's name. Afterwards every process of the run is killed, and the folder removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from evolution.labs.catalog import LABS, Lab, Task
from evolution.labs.plugin import TestRecord

PROJECT = LABS.parents[1]
PUBLIC = "test_lab.py"
RUN_VARIABLE = "EVOLUTION_LAB_RUN"  # marks every process of a run, also one that has left its group and its parent
LEAVES = 1.0  # s in which who is about to end may do so, or multiprocessing's tracker remove shared memory that is left
SETTINGS = "[pytest]\ntimeout = 60\ntimeout_method = signal\naddopts = --tb=short --color=no\n"


@dataclass(frozen=True)
class TaskGrade:
    """`message`: why a task without its points has none, although no test of it failed; "" otherwise."""

    task: Task
    tests: tuple[TestRecord, ...]
    message: str = ""

    @property
    def points(self) -> int:
        return self.task.points if self.tests and all(test.outcome == "passed" for test in self.tests) else 0


@dataclass(frozen=True)
class Grade:
    """`ungraded`: tests that belong to no task. `output`: what pytest printed. `timed_out`: the lab's time was over.
    `left`: names of processes that were still there at the end."""

    lab: Lab
    tasks: tuple[TaskGrade, ...]
    ungraded: tuple[TestRecord, ...]
    output: str
    seconds: float
    timed_out: bool
    left: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def possible(self) -> int:
        return sum(task.task.points for task in self.tasks)


@dataclass
class Told:
    """What the plugin said."""

    tests: dict[str, TestRecord] = field(default_factory=dict)
    running: str = ""
    broken: str = ""
    finished: bool = False


def grade(lab: Lab, overlays: Sequence[Path] = (), hidden: Path | None = None, task: Task | None = None) -> Grade:
    """`overlays`: folders with the student's files, the last one on top; none: the lab's own. `hidden`: a folder with
    further tests. `task`: that one only. ValueError of one line for folders that cannot be used."""
    with tempfile.TemporaryDirectory(prefix="evo-lab-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        package = folder / lab.name
        copy_lab(lab, package, overlays, hidden)
        results, output = folder / "results.jsonl", folder / "output.txt"
        results.touch()
        began = time.monotonic()
        timed_out, left = run_tests(lab, folder, results, output, task)
        seconds = time.monotonic() - began
        told = read_results(results, timed_out, lab.timeout)
        text = output.read_text(errors="replace")
    chosen = [task] if task else lab.tasks
    tests = tuple(told.tests.values())
    known = {task.name for task in lab.tasks} | {""}
    if unknown := [test.name for test in tests if test.task not in known]:
        raise ValueError(f"{lab.name}: {unknown[0]} belongs to a task that tasks.toml does not have")
    grades = tuple(_grade_task(one, tests, told) for one in chosen)
    ungraded = tuple(test for test in tests if not test.task)
    return Grade(lab, grades, ungraded, text, seconds, timed_out, left)


def _grade_task(task: Task, tests: tuple[TestRecord, ...], told: Told) -> TaskGrade:
    mine = tuple(test for test in tests if test.task == task.name)
    if told.broken:  # a file of tests that cannot be imported holds tests that nobody knows of
        mine = tuple(_failed(test, told.broken) for test in mine)
        return TaskGrade(task, mine, told.broken)
    return TaskGrade(task, mine, "" if mine else "no test of it ran")


def _failed(test: TestRecord, message: str) -> TestRecord:
    return dataclasses.replace(test, outcome="failed", message=message)


def copy_lab(lab: Lab, package: Path, overlays: Sequence[Path], hidden: Path | None) -> None:
    shutil.copytree(lab.folder, package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (package / "__init__.py").touch()
    for overlay in overlays:
        if not overlay.is_dir():
            raise ValueError(f"--solution {overlay}: not a folder")
        given = [name for name in lab.files if (overlay / name).is_file()]
        if not given:
            raise ValueError(f"--solution {overlay}: none of {', '.join(lab.files)} is there")
        for name in given:
            shutil.copyfile(overlay / name, package / name)
    if hidden is None:
        return
    if not hidden.is_dir() or not list(hidden.glob("test_*.py")):
        raise ValueError(f"--hidden {hidden}: no test_*.py is there")
    for path in hidden.glob("*.py"):
        if path.name == "__init__.py":
            continue
        if (package / path.name).exists():
            raise ValueError(f"--hidden {hidden}: the lab has a {path.name} of its own")
        shutil.copyfile(path, package / path.name)


def run_tests(lab: Lab, folder: Path, results: Path, output: Path, task: Task | None) -> tuple[bool, tuple[str, ...]]:
    """Whether the lab's time was over, and which processes had to be killed."""
    settings = folder / "pytest.ini"
    settings.write_text(SETTINGS)
    temporary = folder / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "evolution.labs.plugin"]
    command += ["--lab-results", str(results)]
    command += ["--lab-task", task.name] if task else []
    path = [str(folder), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join(path),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever else is installed here: the start is faster, and the same
        "TMPDIR": str(temporary),
        RUN_VARIABLE: folder.name,
    }
    package = folder / lab.name
    others = sorted(path for path in package.glob("test_*.py") if path.name != PUBLIC)
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, *map(str, (package / PUBLIC, *others))],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(lab.timeout)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            left = end_run(process.pid, folder.name)
            process.wait()
    return timed_out, left


def end_run(group: int, run: str) -> tuple[str, ...]:
    """Kill what does not end by itself, until nothing is left. Last of all the trackers, which remove shared memory
    when all who used it are gone. The names of the others."""
    psutil.wait_procs(list(_members(group, run)), timeout=LEAVES)
    names = []
    while others := [one for one in _members(group, run) if not _is_tracker(one)]:
        for process in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(process.name())
                process.kill()
        psutil.wait_procs(others, timeout=1)
    psutil.wait_procs(list(_members(group, run)), timeout=LEAVES)
    for process in _members(group, run):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return tuple(names)


def _members(group: int, run: str) -> Iterator[psutil.Process]:
    """Processes of the group, and those elsewhere that inherited the run's mark. No zombies."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if os.getpgid(process.pid) == group or mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                yield process
        except (psutil.NoSuchProcess, OSError):  # has ended, or is another user's
            continue


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True


def read_results(results: Path, timed_out: bool, limit: float) -> Told:
    told = Told()
    for line in results.read_bytes().splitlines():
        try:
            said = msgspec.json.decode(line)
        except msgspec.DecodeError:  # the last one, cut off when the process was killed
            break
        kind, content = said["kind"], said["content"]
        if kind == "collected":
            told.tests = {test["name"]: TestRecord(**test) for test in content}
        elif kind == "begins":
            told.running = content
        elif kind == "ended":
            told.tests[content["name"]] = TestRecord(**content)
        elif kind == "broken":
            told.broken = told.broken or content
        elif kind == "finished":
            told.finished = True
    for test in told.tests.values():
        if not test.outcome and timed_out:
            test.outcome = "timeout"
            running = test.name == told.running
            test.message = f"Timeout (>{limit:g}s of the lab)" if running else f"did not run in the lab's {limit:g} s"
        elif not test.outcome:
            ended = "ended pytest's process" if test.name == told.running else "did not run"
            test.outcome, test.message = "failed", ended
    return told
