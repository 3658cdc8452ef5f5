"""Where a figure was measured: command, commit, versions, CPU, threads, load.

`git_changes` names the Python files that differ from the commit, `git_diff` is the SHA-256 of how.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from common.args import EngineArgs
from common.ranks import threads_per_rank
from common.sim.profiles import load_profile

PACKAGES = ("torch", "rpyc", "pyzmq", "msgspec", "numpy", "tokenizers")


def environment(args: EngineArgs) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m evolution", *sys.argv[1:]]),
        **code(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "threads_per_rank": threads_per_rank(args),
        "load_average": os.getloadavg(),
        "device": args.device,
        "sim_profile": _sim_profile(args),
        "seed": args.random_seed,
    }


def code() -> dict[str, str | None]:
    """Which code runs: every engine imports anew what lies in the checkout."""
    diff = _git("diff", "HEAD", "--", "*.py")
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changes": _git("status", "--porcelain", "--untracked-files=no", "--", "*.py"),
        "git_diff": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else None,
    }


def _sim_profile(args: EngineArgs) -> dict[str, Any] | None:
    """All that `--device sim` predicted from: the file behind a name may change."""
    if args.device != "sim":
        return None
    return {"name": args.sim_profile, **msgspec.to_builtins(load_profile(args.sim_profile))}


def _cpu_model() -> str:
    """With the numbers that tell generations apart: a virtual machine often says no more than the maker's name."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    if "model name" not in fields:
        return platform.machine()
    numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model", "stepping") if name in fields]
    return f"{fields['model name']} ({', '.join(numbers)})"


def _git(*arguments: str) -> str | None:
    """What git says of the checkout that this file lies in; None where there is none, or nothing is said."""
    here = Path(__file__).parent
    result = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False)
    return result.stdout.strip() or None
