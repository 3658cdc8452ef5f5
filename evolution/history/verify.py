"""`history --verify`: the facts of this folder against published wheels, or a clone; and what neither can tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evolution.history import data
from evolution.history.clone import check_history
from evolution.history.data import Line, Listing
from evolution.history.outcomes import AGREES, DIFFERS, UNKNOWN, Outcome
from evolution.history.releases import Files, check_repo, from_tag, from_wheel, managers_of
from evolution.history.trees import MODELS


@dataclass(frozen=True)
class Facts:
    """What can be looked up in a release, by version."""

    listings: dict[str, Listing]
    lines: dict[str, list[Line]]


def all_facts() -> Facts:
    return Facts(data.listings(), by_version(all_lines()))


def all_lines() -> list[Line]:
    rows: list[Iterable[Line]] = [row.lines for row in (*data.constants(), *data.tradeoffs(), *data.claims())]
    return [line for lines in (*rows, *(model.lines for model in MODELS)) for line in lines]


def by_version(lines: list[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in dict.fromkeys(lines):
        found[line.version].append(line)
    return dict(found)


def verify(facts: Facts, wheels: Path | None, repo: Path | None) -> list[Outcome]:
    """Each release against its wheel and its tag, then the commits against the clone. ValueError if there is neither,
    or if they cannot be read."""
    if wheels is None and repo is None:
        raise ValueError(f"--verify needs --wheels DIR, of `{pip_download(facts.listings)}`, or --repo PATH of a clone")
    if wheels is not None and not wheels.is_dir():
        raise ValueError(f"--wheels {wheels}: no such folder; make it with `{pip_download(facts.listings)}`")
    if repo is not None:
        check_repo(repo)
    outcomes = []
    for version in facts.listings:
        if wheels is not None:
            missing = f"no wheel: pip download --no-deps --dest {wheels} sglang=={version}"
            outcomes += check_release(facts, version, "wheel", from_wheel(wheels, version), missing)
        if repo is not None:
            outcomes += check_release(facts, version, "tag", from_tag(repo, version), f"no tag v{version} in the clone")
    if repo is None:
        outcomes.append(Outcome("the seven commits, and what only they tell", UNKNOWN, "needs --repo PATH, a clone"))
    else:
        outcomes += check_history(repo, data.commits())
    return [*outcomes, *beyond(data.claims())]


def check_release(facts: Facts, version: str, source: str, files: Files | None, missing: str) -> list[Outcome]:
    """The listing of managers/, and every line that a fact refers to."""
    name = f"{version}, {source}"
    if files is None:
        return [Outcome(name, UNKNOWN, missing)]
    wanted, found = facts.listings[version].files, managers_of(files)
    details = [f"has no {file}" for file in sorted(wanted.keys() - found.keys())]
    details += [f"has {file} too" for file in sorted(found.keys() - wanted.keys())]
    details += [
        f"{file}: {found[file]} lines, not {count}" for file, count in wanted.items() if found.get(file, count) != count
    ]
    outcomes = [Outcome(f"{name}: managers/", DIFFERS, "; ".join(details))]
    if not details:
        outcomes = [Outcome(f"{name}: managers/", AGREES, f"{len(wanted)} files, {sum(wanted.values())} lines")]
    lines = facts.lines.get(version, [])
    misses = [f"{line} does not hold {line.holds!r}" for line in lines if not holds(files, line)]
    if misses:
        outcomes.append(Outcome(f"{name}: lines referred to", DIFFERS, "; ".join(misses)))
    elif lines:
        outcomes.append(Outcome(f"{name}: lines referred to", AGREES, f"{len(lines)} of {len(lines)}"))
    return outcomes


def holds(files: Files, line: Line) -> bool:
    text = files.get(line.file, b"").decode(errors="replace").split("\n")
    return any(line.holds in one for one in text[line.first - 1 : line.last])


def beyond(claims: list[data.Claim]) -> list[Outcome]:
    """What no release and no clone can tell."""
    threads = [str(claim.number) for claim in claims if claim.threads and not claim.lines]
    nothing = [str(claim.number) for claim in claims if not claim.threads and not claim.lines]
    return [
        Outcome(f"claims {', '.join(threads)}", UNKNOWN, "rest on pull requests and issues, which lie at GitHub"),
        Outcome(f"claims {', '.join(nothing)}", UNKNOWN, "rest on listings, on several releases, or on today's code"),
        Outcome("today's processes", UNKNOWN, "read in later revisions, which are no release of this list"),
    ]


def pip_download(versions: Iterable[str]) -> str:
    return "pip download --no-deps --dest DIR sglang==VERSION, for VERSION in " + ", ".join(versions)
