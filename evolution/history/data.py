"""What the folder's JSON files hold, typed: a file that does not fit ends in msgspec.ValidationError.

Every fact says where it can be looked up: lines of a published release, which `history --verify` reads, or the number
of a pull request or an issue of sgl-project/sglang.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

Verdict = Literal["true", "partly", "wrong", "not checkable"]
SHOWN = ("0.1.5", "0.2.0", "0.3.0", "0.4.0")  # the releases whose managers/ the chapter lists


class Line(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Lines `first` to `last` of a file of a release (its path below sglang/); `holds` stands in one of them."""

    version: str
    file: str
    first: int
    last: int
    holds: str

    def __str__(self) -> str:
        short = self.file.removeprefix("srt/").removeprefix("managers/")
        span = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.version} {short}:{span}"


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Python files under managers/ of a release, with their numbers of lines; `date`: of its wheel."""

    date: str
    files: dict[str, int]


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`release`: the first that has it, of those read here. `counts`: lines that the chapter says were added and
    deleted, where it does: only a clone knows."""

    hash: str
    date: str
    title: str
    pr: int
    release: str
    did: str
    counts: tuple[int, int] | None = None


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: a value for each of the releases that has it, and what it costs or buys."""

    name: str
    values: dict[str, str]
    lines: list[Line]
    effect: str = ""


class Tradeoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One design. `corrects`: the chapter's claims that the row sets right, by their numbers."""

    design: str
    reaches_ranks_by: str
    scheduling: str
    price: str
    corrects: list[int]
    lines: list[Line]


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command of this suite, without `python -m evolution`, and what it should show."""

    command: str
    shows: str


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`because`: why the verdict; `lines` and `threads`: where that can be looked up; `experiment`: where a run of
    this suite shows it; `measured`: `claims --run` measures what is predicted of it (`experiments.claims`)."""

    number: int
    claim: str
    verdict: Verdict
    because: str
    lines: list[Line]
    threads: list[int]
    experiment: Experiment | None
    measured: bool = False


def listings() -> dict[str, Listing]:
    return _read("listings.json", dict[str, Listing])


def commits() -> list[Commit]:
    return _read("commits.json", list[Commit])


def constants() -> list[Constant]:
    return _read("constants.json", list[Constant])


def tradeoffs() -> list[Tradeoff]:
    return _read("tradeoffs.json", list[Tradeoff])


def claims() -> list[Claim]:
    return _read("claims.json", list[Claim])


@cache
def _read(name: str, kind: type) -> object:
    return msgspec.json.decode((Path(__file__).parent / name).read_bytes(), type=kind)
