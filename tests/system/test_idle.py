"""An idle engine blocks: almost no CPU time, in no process."""

from __future__ import annotations

import time

import pytest

from common.os_accounts import process_cpu_ns
from evolution import Engine
from experiments.bench.engines import pids_of

MOST_CORES = 0.02


@pytest.mark.parametrize(
    ("dp", "seconds"),
    [(2, 3), pytest.param(1, 10, marks=pytest.mark.slow), pytest.param(2, 10, marks=pytest.mark.slow)],
)
def test_idle_burns_no_cpu(stage, dp, seconds):
    with Engine(model_path="tiny", stage=stage, tp_size=2, dp_size=dp, max_total_tokens=1024) as engine:
        engine.generate(["a", "b"], {"max_new_tokens": 4})
        time.sleep(0.5)
        pids = pids_of(engine)
        before = {pid: process_cpu_ns(pid) / 1e9 for pid in pids}
        time.sleep(seconds)
        burned = {pid: process_cpu_ns(pid) / 1e9 - before[pid] for pid in pids}
        assert engine.generate("a", {"max_new_tokens": 4})["output_ids"]
        print(f"{stage} TP 2 DP {dp}: {sum(burned.values()) / seconds:.4f} cores over {seconds} s")
    assert sum(burned.values()) / seconds < MOST_CORES, burned
