"""The transformers arm of `bench engine`: a process of its own, so that its threads and its memory are its own.

It reads one JSON line per task from stdin and answers each with one on stdout:

    {"prompts": [[id, ..], ..], "new_tokens": n}    {"seconds": s, "cpu_seconds": c, "output_ids": [[id, ..], ..]}
    {"read_bytes": n}                               {"seconds": s}: the fastest of ten plain reads of n bytes

`generate` as its users call it: attention by torch's SDPA, greedy, prompts of one length in one batch, no compilation.
The clock runs in here and sees nothing of the pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class TransformersArm:
    """The parent's side. A context manager; `ask` raises RuntimeError when the process has ended."""

    def __init__(self, folder: str, dtype: str, env: dict[str, str]) -> None:
        command = [sys.executable, "-m", "experiments.bench.transformers_arm", folder, dtype]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}, cwd=root
        )
        self.pid = self._process.pid

    def ask(self, **task: Any) -> dict[str, Any]:
        answer = ""
        with contextlib.suppress(BrokenPipeError):  # it has ended: said below
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the transformers process ended with code {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> TransformersArm:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder, dtype = sys.argv[1:]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    for line in sys.stdin:
        task = json.loads(line)
        with torch.inference_mode():
            answer = _read(task["read_bytes"]) if "read_bytes" in task else _generate(model, **task)
        print(json.dumps(answer), flush=True)


def _generate(model: Any, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    import torch

    began, cpu_began = time.perf_counter(), time.process_time()
    inputs = torch.tensor(prompts)
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    output_ids = output[:, inputs.shape[1] :].tolist()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
        "output_ids": output_ids,
    }


def _read(nbytes: int) -> dict[str, float]:
    import torch

    numbers = torch.ones(nbytes // 4)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - began)
    return {"seconds": min(seconds)}


if __name__ == "__main__":
    main()
