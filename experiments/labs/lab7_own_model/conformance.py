"""A part of the conformance suite, run on your stage in a pytest of its own. Given; nothing to edit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import evolution

from .adapters import STAGE

ROOT = Path(evolution.__file__).parents[1]
SUITE = "tests/conformance"
EACH = 90  # s for one test, which takes a second or two on a machine that has nothing else to do


def judge(selection: str, patience: float, file: str = "") -> str:
    """Run the tests that `selection` (as pytest's -k) names, up to the first that fails. What they came to, in a line.

    AssertionError with the end of pytest's own report if one fails, or nothing was run.
    """
    command = [sys.executable, "-m", "pytest", f"{SUITE}/{file}".rstrip("/"), "--stage", STAGE, "-k", selection]
    command += ["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-m", ""]
    command += ["--timeout", str(EACH), "--tb", "short"]
    paths = os.pathsep.join(path for path in [*sys.path, str(ROOT)] if path)
    began = time.monotonic()
    # Into a file: a process that is left behind would hold the end of a pipe open.
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(patience)
            ended = True
        except BaseException:  # whatever ends this test: the suite ends with it, and its engine by itself
            ended = False
            end(process)
        file.seek(0)
        output = file.read()
    assert ended, f"the suite did not end in {patience:.0f} s:\n{output[-3000:]}"
    assert process.returncode == 0, f"{what_failed(output)}\n{' '.join(command[3:])}\n{output[-6000:]}"
    passed = re.search(r"(\d+) passed", output)
    assert passed, output[-3000:]
    return f"{passed[1]} tests of the suite in {time.monotonic() - began:.0f} s"


def what_failed(output: str) -> str:
    """In a line."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if lines else "the suite failed"


def end(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
