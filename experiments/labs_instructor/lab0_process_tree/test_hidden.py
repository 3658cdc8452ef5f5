"""The hidden tests of lab 0: other sizes, other stages."""

from __future__ import annotations

import os
import subprocess
import threading

import psutil
import pytest

from evolution import Engine
from experiments.labs.marks import cost, task

from . import adapters, truth


@task("0a_counts")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("stage", ["rpyc", "broadcast", "peer"])
def test_more_counts(stage: str) -> None:
    others = [(8, 1), (1, 5), (3, 3), (6, 2), (1, 16)]
    wanted = [len(truth.described(stage, tp_size, dp_size).walk()) for tp_size, dp_size in others]
    with truth.by_heart():
        assert [adapters.process_count(stage, tp_size, dp_size) for tp_size, dp_size in others] == wanted
    cost(f"{stage}: {wanted}")


@task("0b_tree")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("stage", ["rpyc", "broadcast", "peer"])
def test_larger_trees(stage: str) -> None:
    for tp_size, dp_size in ((5, 1), (1, 3), (3, 12), (8, 2)):
        wanted = truth.parents_of(truth.described(stage, tp_size, dp_size))
        with truth.by_heart():
            assert adapters.parents(stage, tp_size, dp_size) == wanted
    cost(f"{stage}: {len(wanted)} processes at TP 8 with 2 replicas, each below the right one")


@task("0c_look")
@pytest.mark.timeout(120)
def test_look_at_replicas() -> None:
    """A child of ours that only calls itself so is one more: its program is `sleep`."""
    assert adapters.processes_below(os.getpid()) == {}
    other = subprocess.Popen(["bash", "-c", "exec -a 'evo-peer TP9' sleep 60"])
    try:
        with Engine(device="sim", stage="broadcast", dp_size=2) as engine:
            seen, wanted = adapters.processes_below(os.getpid()), truth.started(engine)
            deepest = {pid: adapters.processes_below(pid) for pid in wanted}
    finally:
        other.kill()
        other.wait()
    assert seen == {**wanted, other.pid: ("evo-peer TP9", os.getpid())}
    for pid, below in deepest.items():
        assert below == {child: told for child, told in wanted.items() if told[1] == pid}
    cost(f"{len(wanted)} processes of 2 replicas")


@task("0c_look")
@pytest.mark.timeout(30)
def test_look_while_processes_end() -> None:
    """Others come and go meanwhile, as they do on any machine."""
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            subprocess.run(["true"], check=True)

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert adapters.processes_below(os.getpid()) == {}
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    cost("30 looks")


@task("0d_messages")
@pytest.mark.timeout(20)
def test_messages_of_other_sizes() -> None:
    replicated = {"rpyc": [2, 6, 10, 18], "broadcast": [2, 3, 5, 9], "peer": [2, 3, 5, 9]}
    rank0 = {"rpyc": [2, 8, 12, 20], "broadcast": [2, 4, 8, 16], "peer": [2, 4, 8, 16]}
    for scheduling, wanted in (("replicated", replicated), ("rank0", rank0)):
        for stage, numbers in wanted.items():
            assert [adapters.messages_of_a_turn(stage, size, scheduling) for size in (1, 2, 4, 8)] == numbers
    cost(f"at TP 8, replicated: rpyc {replicated['rpyc'][3]}, broadcast {replicated['broadcast'][3]}")


@task("0e_idle")
@pytest.mark.timeout(30)
def test_cpu_of_all_threads() -> None:
    """Of this process, which has had threads that ended, and of its system calls."""
    thread = threading.Thread(target=lambda: [os.getloadavg() for _ in range(200_000)])
    thread.start()
    thread.join()
    before = sum(psutil.Process().cpu_times()[:2])
    seconds = adapters.cpu_seconds(os.getpid())
    after = sum(psutil.Process().cpu_times()[:2])
    assert before - truth.HALF_A_TICK <= seconds <= after + truth.HALF_A_TICK
    cost(f"{seconds:.2f} s of CPU")
