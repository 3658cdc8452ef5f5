"""A raw unix socket with no harness around it: what `socket` of `bench mechanisms` is itself compared to.

Two processes and a socket pair, no library of the engine imported, a pickled list, 1 ms between two steps. The receiver
writes when it had the list into shared memory. `python -m experiments.bench.bare_socket` prints the us of each step as
JSON: for no request and for 16 with their ids in lists, on cores of the scheduler's choice; and for no request with
both processes on one core, and each on its own, since to wake a sleeping core can cost more than all the rest.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import socket
import struct
import time

from experiments.bench.mechanism_payloads import ListRequest

LENGTH = struct.Struct("<Q")
PACE = 0.001
WARM = 20
STEPS = {"0": 200, "16 lists": 100, "0, one core": 200, "0, two cores": 200}


def measure_steps(messages: list, steps: int, cores: tuple[int, int] | None = None) -> list[float]:
    """us of each step after the first WARM: from having the list to the other process's having it. cores: of the two
    processes; None: of the scheduler's choice."""
    before = os.sched_getaffinity(0)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    stamps = memoryview(mmap.mmap(-1, 8 * (WARM + steps))).cast("q")
    pid = os.fork()
    if cores:
        os.sched_setaffinity(0, {cores[pid == 0]})
    if pid == 0:
        try:
            for step in range(WARM + steps):
                (length,) = LENGTH.unpack(theirs.recv(LENGTH.size, socket.MSG_WAITALL))
                pickle.loads(theirs.recv(length, socket.MSG_WAITALL))
                stamps[step] = time.monotonic_ns()
        finally:
            os._exit(0)
    began = []
    for _ in range(WARM + steps):
        began.append(time.monotonic_ns())
        content = pickle.dumps(messages)
        ours.sendall(LENGTH.pack(len(content)) + content)
        time.sleep(PACE)
    os.waitpid(pid, 0)
    os.sched_setaffinity(0, before)
    return [(there - here) / 1000 for there, here in zip(stamps, began, strict=True)][WARM:]


def sixteen_lists() -> list[ListRequest]:
    """As many bytes as the payload `16 lists` of `bench mechanisms`."""
    prompts = [[(i * 7919 + n * 10477) % 49152 for n in range(512)] for i in range(16)]
    return [ListRequest(f"r{i}", ids, 16, 0.0, 1.0, -1, [], True) for i, ids in enumerate(prompts)]


def measure_all() -> dict[str, list[float]]:
    """STEPS of each."""
    cores = sorted(os.sched_getaffinity(0))
    lists = {"16 lists": sixteen_lists()}
    pinned = {"0, one core": (cores[0], cores[0]), "0, two cores": (cores[0], cores[-1])}
    return {name: measure_steps(lists.get(name, []), steps, pinned.get(name)) for name, steps in STEPS.items()}


if __name__ == "__main__":
    print(json.dumps(measure_all()))
