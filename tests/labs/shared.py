"""Where the labs are, and what the instructor has for each of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from evolution.labs.catalog import LABS, Lab, all_labs

INSTRUCTOR = LABS.parent / "labs_instructor"
ALL = all_labs()


def instructor(lab: Lab) -> Path:
    return INSTRUCTOR / lab.name


@dataclass(frozen=True)
class Wrong:
    """A solution that is wrong on purpose. loses: exactly these tasks. cheap: it runs in `make test`. hangs: it loses
    by a timeout."""

    lab: Lab
    folder: Path
    loses: list[str]
    why: str
    cheap: bool = False
    hangs: bool = False

    @property
    def id(self) -> str:
        return f"lab{self.lab.number}-{self.folder.name}"


def wrong_solutions(lab: Lab) -> list[Wrong]:
    paths = sorted((instructor(lab) / "wrong").glob("*/wrong.toml"))
    return [Wrong(lab, path.parent, **tomllib.loads(path.read_text())) for path in paths]
