"""10,000 mixed requests to a server: each comes to exactly one end, the KV pool is whole, and no process grows.

`make test` sends 150 of them, in test_serve.py.
"""

from __future__ import annotations

import time

import psutil
import pytest

from evolution import Engine
from experiments.faults.watching import pids_of
from tests.helpers.server_state import Counts, check_counts, check_pool, held_by
from tests.helpers.serving import CHAT_TEMPLATE, serving
from tests.helpers.soak import check_outcomes, send_all
from tests.helpers.soak_plan import plan

REQUESTS = 10_000
WARM_UP = 2_500  # until the allocator, the caches and the thread pools have their size
# What a process may gain over the other 7,500. Its heap breathes by 1 to 3 MiB; 1 KiB kept of each request is 7.3 MiB.
SLACK = 6 << 20  # bytes
FEW = 4  # files, or threads: a connection that is being closed, a thread of a pool that was not needed before
# Prompts in small chunks: what attention takes for a moment is then small beside what a leak would be.
OPTIONS = ["--tp-size", "2", "--max-total-tokens", "2048", "--max-running-requests", "16"]
OPTIONS += ["--chunked-prefill-size", "128", "--schedule-conservativeness", "0.1"]
OPTIONS += ["--chat-template", str(CHAT_TEMPLATE)]
# oneDNN keeps the last 1,024 kernels that it made for packed weights, one for each number of rows of each matrix, some
# 0.4 MiB each, and it takes thousands of requests until it drops one.
OPTIONS += ["--disable-packed-linear"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("dp", [1, 2])
def test_10_000_mixed_requests(stage, dp, nothing_left_behind):
    planned = plan(REQUESTS, seed=dp)
    with serving("--stage", stage, "--dp-size", str(dp), *OPTIONS) as server:
        before = Counts.of(server)
        tally = send_all(server, planned[:WARM_UP])
        check_pool(server)
        warm = held_by(server)
        tally.add(send_all(server, planned[WARM_UP:]))
        check_pool(server)
        held = held_by(server)
        check_counts(before, Counts.of(server), tally)
        print("retractions:", server.stats()["retractions"])
    print(dict(tally.outcomes))
    check_outcomes(tally.outcomes, planned)
    assert held.keys() == warm.keys()
    growth = {name: held[name].memory - warm[name].memory for name in held}
    print({name: f"{held[name].memory / 2**20:.1f} MiB, {grown / 2**20:+.1f}" for name, grown in growth.items()})
    assert max(growth.values()) <= SLACK, growth
    for name in held:
        assert held[name].files <= warm[name].files + FEW, (name, warm[name], held[name])
        assert held[name].threads <= warm[name].threads + FEW, (name, warm[name], held[name])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("constants", ["level", "era"])
def test_50_000_calls_of_a_rank(constants, nothing_left_behind):
    """A connection of rpyc takes any number of them, and the processes at its ends hold no more than before. An idle
    engine of the era makes empty ones all the time."""
    with Engine(stage="rpyc", model_path="tiny", max_total_tokens=4096, constants=constants) as engine:
        calls, files = 0, {}
        while calls < 50_000:
            if constants == "level":
                engine.generate(input_ids=[1], sampling_params={"max_new_tokens": 1900, "ignore_eos": True})
            else:
                time.sleep(5)
            (stats,) = engine.stats()
            calls = stats["loop_turns"]
            now = {name: psutil.Process(pid).num_fds() for name, pid in pids_of(engine).items()}
            files = files or now
            assert now == files
        assert engine.generate(input_ids=[1], sampling_params={"max_new_tokens": 4})["output_ids"]
