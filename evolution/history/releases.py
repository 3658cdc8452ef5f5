"""The Python files of a release, by their path below sglang/: out of its wheel, or out of a clone at its tag."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

Files = dict[str, bytes]
MANAGERS = "srt/managers/"


def from_wheel(folder: Path, version: str) -> Files | None:
    """None if the folder has no wheel of it; ValueError if what lies there is none."""
    wheel = next(iter(sorted(folder.glob(f"sglang-{version}-*.whl"))), None)
    if wheel is None:
        return None
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("sglang/") and name.endswith(".py")]
            return {name.removeprefix("sglang/"): archive.read(name) for name in names}
    except zipfile.BadZipFile:
        raise ValueError(f"--wheels: {wheel} is not a wheel; remove it and download it again") from None


def from_tag(repo: Path, version: str) -> Files | None:
    """None if the clone has no tag of it, or if its files lie elsewhere."""
    done = git(repo, "archive", "--format=tar", f"v{version}", "--", "python/sglang")
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(".py")]
        return {member.name.removeprefix("python/sglang/"): archive.extractfile(member).read() for member in members}


def managers_of(files: Files) -> dict[str, int]:
    """What lies under managers/: name -> number of lines."""
    return {path.removeprefix(MANAGERS): text.count(b"\n") for path, text in files.items() if path.startswith(MANAGERS)}


def check_repo(repo: Path) -> None:
    """ValueError of one line if git cannot read a repository there."""
    try:
        done = git(repo, "rev-parse", "--git-dir")
    except FileNotFoundError:
        raise ValueError("--repo needs git, which is not installed here") from None
    if done.returncode:
        raise ValueError(f"--repo {repo}: {done.stderr.decode(errors='replace').splitlines()[0]}")


def git(repo: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    english = os.environ | {"LC_ALL": "C"}
    return subprocess.run(["git", "-C", str(repo), *arguments], env=english, capture_output=True, check=False)
