"""The labs as their `tasks.toml` describe them."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import experiments.labs

LABS = Path(experiments.labs.__file__).parent
ALL_POINTS = 100


@dataclass(frozen=True)
class Task:
    name: str
    title: str
    points: int

    @property
    def short(self) -> str:
        """`1a` of `1a_fan_out`."""
        return self.name.partition("_")[0]


@dataclass(frozen=True)
class Lab:
    """`hours`: of a student's work. `timeout`: s that all of its tests together may take. `files`: what the student
    edits, relative to `folder`. `slow`: grading the reference takes longer than `make test` has time for."""

    folder: Path
    number: int
    title: str
    hours: float
    timeout: float
    files: tuple[str, ...]
    tasks: tuple[Task, ...]
    slow: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    def find_task(self, given: str) -> Task:
        """By its name, or the part before the first underscore. ValueError of one line if there is none."""
        for task in self.tasks:
            if given in (task.name, task.short):
                return task
        raise ValueError(f"{self.name} has no task {given!r}: choose from {', '.join(t.name for t in self.tasks)}")


def all_labs(folder: Path = LABS) -> list[Lab]:
    """In order of their numbers. ValueError of one line for a `tasks.toml` that is wrong."""
    return sorted((read_lab(path.parent) for path in folder.glob("lab*/tasks.toml")), key=lambda lab: lab.number)


def find_lab(given: str) -> Lab:
    """By its number or its folder's name. ValueError of one line if there is none."""
    names = sorted(path.parent.name for path in LABS.glob("lab*/tasks.toml"))
    for name in names:
        if given in (name, name.removeprefix("lab").partition("_")[0]):
            return read_lab(LABS / name)
    raise ValueError(f"there is no lab {given!r}: choose from {', '.join(names)}")


def read_lab(folder: Path) -> Lab:
    path = folder / "tasks.toml"
    named = re.fullmatch(r"lab(\d+)_\w+", folder.name)
    if not named:
        raise ValueError(f"{folder}: a lab's folder is called lab<number>_<name>")
    try:
        fields = tomllib.loads(path.read_text())
        tasks = tuple(Task(**task) for task in fields.pop("task"))
        fields["files"] = tuple(fields["files"])
        lab = Lab(folder, int(named[1]), tasks=tasks, **fields)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error!r}") from None
    check(lab)
    return lab


def check(lab: Lab) -> None:
    """ValueError of one line for what a grader could not work with."""

    def require(holds: Any, what: str) -> None:
        if not holds:
            raise ValueError(f"{lab.folder / 'tasks.toml'}: {what}")

    require(sum(task.points for task in lab.tasks) == ALL_POINTS, f"the points must add up to {ALL_POINTS}")
    require(len({task.short for task in lab.tasks}) == len(lab.tasks), "two tasks begin alike")
    wrong = [task.name for task in lab.tasks if not re.fullmatch(r"\d+[a-z]_\w+", task.name)]
    require(not wrong, f"a task's name begins with a number, a letter and an underscore: {', '.join(wrong)}")
    require(0 < lab.timeout < math.inf and 0 < lab.hours < math.inf, "timeout and hours must be above 0")
    missing = [name for name in lab.files if not (lab.folder / name).is_file()]
    require(lab.files and not missing, f"files: {', '.join(missing) or 'none'} not there")
