"""What only the repository's history tells: commits, how large they were, and when a file came and went."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from evolution.history.data import Commit
from evolution.history.outcomes import AGREES, DIFFERS, UNKNOWN, Outcome
from evolution.history.releases import git

MANAGERS = "python/sglang/srt/managers/"


class FileLength(NamedTuple):
    """How long a file is at a commit, as the chapter says."""

    commit: str
    file: str
    lines: int


class FileEvent(NamedTuple):
    """The commit that added ("A") or deleted ("D") a file, as far as pull requests tell."""

    kind: str
    file: str
    commit: str


LENGTHS = (
    FileLength("0463f7fb52", MANAGERS + "controller/dp_worker.py", 102),
    FileLength("f86c1e611f", MANAGERS + "scheduler.py", 887),
)
EVENTS = (
    FileEvent("A", MANAGERS + "scheduler.py", "048685430d"),
    FileEvent("D", MANAGERS + "controller_multi.py", "048685430d"),
    FileEvent("A", MANAGERS + "data_parallel_controller.py", "23cc66f7b6"),
)


def check_history(repo: Path, commits: list[Commit]) -> list[Outcome]:
    outcomes = [check_commit(repo, commit) for commit in commits]
    outcomes += [check_counts(repo, commit) for commit in commits if commit.counts]
    outcomes += [check_length(repo, one) for one in LENGTHS]
    return outcomes + [check_event(repo, one) for one in EVENTS]


def check_commit(repo: Path, commit: Commit) -> Outcome:
    """Its day (of its author) and its title."""
    found = _say(repo, "log", "-1", "--date=short", "--format=%ad %s", commit.hash)
    return _compare(f"commit {commit.hash}", f"{commit.date} {commit.title}", found, "no such commit in this clone")


def check_counts(repo: Path, commit: Commit) -> Outcome:
    found = _say(repo, "show", "--numstat", "--format=", commit.hash)
    if found is not None:
        rows = [row.split("\t") for row in found.splitlines()]
        added, deleted = (sum(int(row[i]) for row in rows if row[i] != "-") for i in (0, 1))
        found = f"{added} lines added, {deleted} deleted"
    wanted = f"{commit.counts[0]} lines added, {commit.counts[1]} deleted"
    return _compare(f"size of {commit.hash}", wanted, found, "no such commit in this clone")


def check_length(repo: Path, one: FileLength) -> Outcome:
    done = git(repo, "show", f"{one.commit}:{one.file}")
    found = None if done.returncode else f"{len(done.stdout.splitlines())} lines"
    missing = "no such commit, or no such file in it"
    return _compare(f"{one.file.removeprefix(MANAGERS)} in {one.commit}", f"{one.lines} lines", found, missing)


def check_event(repo: Path, one: FileEvent) -> Outcome:
    found = last_event(repo, one.kind, one.file)
    if found is not None and found.startswith(one.commit):
        found = one.commit
    what = f"{one.file.removeprefix(MANAGERS)} was {'added' if one.kind == 'A' else 'deleted'} by"
    return _compare(what, one.commit, found, "no commit of this clone did")


def last_event(repo: Path, kind: str, file: str) -> str | None:
    """`hash day title` of the last commit that added ("A") or deleted ("D") the file; None if none did."""
    arguments = ("--date=short", "--format=%h %ad %s", "--abbrev=10", f"--diff-filter={kind}", "--", file)
    return _say(repo, "log", "-1", "--all", *arguments) or None


def _say(repo: Path, *arguments: str) -> str | None:
    done = git(repo, *arguments)
    return None if done.returncode else done.stdout.decode(errors="replace").strip()


def _compare(what: str, wanted: str, found: str | None, missing: str) -> Outcome:
    if found is None:
        return Outcome(what, UNKNOWN, missing)
    return Outcome(what, AGREES, found) if found == wanted else Outcome(what, DIFFERS, f"{found}; here: {wanted}")
