"""A raw unix socket with no harness around it: what `socket` of `bench mechanisms` is itself compared to.

Two processes and a socket pair, nothing imported but the standard library, a pickled list, 1 ms between two steps. The
receiver writes when it had the list into shared memory. `python -m experiments.bench.bare_socket` prints the us of each
step as JSON, for no request and for 16 with their ids in lists.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import socket
import struct
import time

LENGTH = struct.Struct("<Q")
PACE = 0.001
WARM = 20
STEPS = {"0": 200, "16 lists": 100}


def measure_steps(messages: list, steps: int, pace: float = PACE) -> list[float]:
    """us of each step after the first WARM: from having the list to the other process's having it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    stamps = memoryview(mmap.mmap(-1, 8 * (WARM + steps))).cast("q")
    pid = os.fork()
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
        time.sleep(pace)
    os.waitpid(pid, 0)
    return [(there - here) / 1000 for there, here in zip(stamps, began, strict=True)][WARM:]


def sixteen_lists() -> list[dict]:
    """As large as the payload `16 lists` of `bench mechanisms`."""
    fields = {"max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "stop": [], "stream": True}
    return [
        {"rid": f"r{i}", "input_ids": [(i * 7919 + n * 10477) % 49152 for n in range(512)], **fields} for i in range(16)
    ]


if __name__ == "__main__":
    payloads = {"0": [], "16 lists": sixteen_lists()}
    print(json.dumps({name: measure_steps(messages, STEPS[name]) for name, messages in payloads.items()}))
