"""One start of an engine, timed from inside: what `bench startup` runs in a fresh interpreter, once per sample.

It imports no more than a program that uses the engine would.
"""

from __future__ import annotations

import json
import time

PROMPT = [1, 2, 3, 4]


def probe(stage: str, tp_size: int, model_path: str) -> None:
    """Start, wait for the first token, stop; print JSON: process -> step -> seconds on the monotonic clock."""
    times = {"running": time.monotonic()}
    from evolution import Engine

    times["imported"] = time.monotonic()
    engine = Engine(model_path=model_path, stage=stage, tp_size=tp_size)
    times |= engine.start_times
    results = engine.generate(
        input_ids=PROMPT, sampling_params={"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}, stream=True
    )
    first = next(results)
    times["first token"] = time.monotonic()
    tokens = [*first["output_ids"]]
    results.close()
    engine.shutdown()
    processes = {"main": times}
    for report in engine.processes:
        for node in report.walk():
            processes[node.name] = node.times
    print(json.dumps({"tokens": tokens, "processes": processes}))
