"""Where a figure was measured: command, commit, versions, CPU, threads, load."""

from __future__ import annotations

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
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changes": _git("status", "--porcelain", "--untracked-files=no"),
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


def _sim_profile(args: EngineArgs) -> dict[str, Any] | None:
    """All that `--device sim` predicted from: the file behind a name may change."""
    if args.device != "sim":
        return None
    return {"name": args.sim_profile, **msgspec.to_builtins(load_profile(args.sim_profile))}


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _git(*arguments: str) -> str | None:
    """What git says of the checkout that this file lies in; None where there is none, or nothing is said."""
    here = Path(__file__).parent
    result = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False)
    return result.stdout.strip() or None
