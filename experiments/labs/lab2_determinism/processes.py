"""Run a function in processes that share nothing that ranks may not share: hash salt, clock, state of `random`."""

from __future__ import annotations

import importlib
import os
import pickle
import random
import subprocess
import sys
import time
from typing import Any

SALTS = ("1", "4242")
TIMEOUT = 30.0


def in_two_processes(function: str, *arguments: Any) -> list[Any]:
    """What `function` ("module:name", of this package) returns in each of two processes, of which the second one has
    another hash salt, clocks that run a thousand times as fast, and another state of `random`.

    RuntimeError for what it raised; NotImplementedError is passed on; TimeoutExpired if it does not end.
    """
    command = [sys.executable, "-m", __name__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    results = []
    for number, salt in enumerate(SALTS):
        given = pickle.dumps((number, function, arguments))
        done = subprocess.run(
            command,
            input=given,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONHASHSEED": salt},
            timeout=TIMEOUT,
            check=True,
        )
        kind, value = pickle.loads(done.stdout)
        if kind == "unwritten":
            raise NotImplementedError(value)
        if kind == "raised":
            raise RuntimeError(f"in a process of its own: {value}")
        results.append(value)
    return results


def _main() -> None:
    number, function, arguments = pickle.loads(sys.stdin.buffer.read())
    output = os.dup(1)
    os.dup2(2, 1)  # what a solution prints is not our answer
    random.seed(number)
    if number:
        _quicken_clocks()
    module, name = function.split(":")
    try:
        answer = "returned", getattr(importlib.import_module(f".{module}", __package__), name)(*arguments)
    except NotImplementedError as error:
        answer = "unwritten", str(error)
    except Exception as error:
        answer = "raised", f"{type(error).__name__}: {error}"
    with os.fdopen(output, "wb") as file:
        file.write(pickle.dumps(answer))


def _quicken_clocks() -> None:
    """As of a rank whose time goes by faster: it is slower than the others, or its clock is wrong."""
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        for suffix, day in (("", 86400), ("_ns", 86400 * 10**9)):
            clock = getattr(time, name + suffix)
            setattr(time, name + suffix, lambda clock=clock, day=day: clock() * 1000 + day)


if __name__ == "__main__":
    _main()
