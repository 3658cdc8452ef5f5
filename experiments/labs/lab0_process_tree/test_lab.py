"""The public tests of lab 0. Each prints what it found."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from evolution import Engine
from experiments.labs.marks import cost, task

from . import adapters, truth

STAGES = ("rpyc", "broadcast", "peer")
LIVE = [("broadcast", "replicated"), ("rpyc", "rank0")]  # engines that are started


@task("0a_counts")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("stage", STAGES)
def test_counts(stage: str) -> None:
    sizes = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]
    expected = [len(truth.described(stage, *size).walk()) for size in sizes]
    with truth.by_heart():
        assert [adapters.process_count(stage, *size) for size in sizes] == expected
    cost(f"{stage}: {expected[1]} processes at TP 2, {expected[4]} with 2 replicas of it")


@task("0a_counts")
@pytest.mark.timeout(20)
def test_a_stage_that_does_not_exist() -> None:
    with pytest.raises(ValueError):
        adapters.process_count("ring", 2, 1)


@task("0b_tree")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("stage", STAGES)
def test_tree(stage: str) -> None:
    for size in ((1, 1), (2, 1), (2, 2)):
        expected = truth.parents_of(truth.described(stage, *size))
        with truth.by_heart():
            assert adapters.parents(stage, *size) == expected
    main = sum(parent == "main" for parent in expected.values())
    cost(f"{stage}: at TP 2 with 2 replicas main starts {main} of {len(expected) - 1} processes itself")


@task("0c_look")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("stage", "scheduling"), LIVE)
def test_look(stage: str, scheduling: str) -> None:
    assert adapters.processes_below(os.getpid()) == {}
    found = truth.observe(stage, scheduling, adapters.processes_below)
    if isinstance(found.seen, Exception):
        raise found.seen  # with the solution's own traceback
    assert found.seen == found.started
    deep = sum(parent != os.getpid() for _, parent in found.started.values())
    cost(f"{stage}: {len(found.started)} processes below main, {deep} of them started by another one")


@task("0d_messages")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("stage", "scheduling"), LIVE)
def test_messages(stage: str, scheduling: str) -> None:
    predicted = adapters.messages_of_a_turn(stage, 2, scheduling)
    found = truth.observe(stage, scheduling, adapters.processes_below).messages
    assert predicted == found, f"{stage}, TP 2, {scheduling}: the trace has {found} messages a turn"
    cost(f"{stage}, {scheduling}: {found} messages a decode turn at TP 2, {found / 2:g} a rank")


@task("0e_idle")
@pytest.mark.timeout(60)
def test_cpu_of_a_process() -> None:
    assert adapters.cpu_seconds(os.getpid()) > 0
    code = "import setproctitle\nsetproctitle.setproctitle('a (b) c')\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", code])
    try:
        process = psutil.Process(busy.pid)
        while sum(process.cpu_times()[:2]) < 0.5:
            time.sleep(0.05)
        before = sum(process.cpu_times()[:2])
        seconds = adapters.cpu_seconds(busy.pid)
        after = sum(process.cpu_times()[:2])
    finally:
        busy.kill()
        busy.wait()
    assert before - truth.HALF_A_TICK <= seconds <= after + truth.HALF_A_TICK
    with pytest.raises(ProcessLookupError):
        adapters.cpu_seconds(busy.pid)
    cost(f"{seconds:.2f} s of CPU read where psutil reads {before:.2f} to {after:.2f}")


@task("0e_idle")
@pytest.mark.timeout(150)
def test_an_idle_engine() -> None:
    """A spinning engine takes all the cores that it can get, a blocking one next to none. A hundred times as much is
    usual; on a machine that is busy with other things it is less, so five times is asked for."""
    assert adapters.cpu_seconds(os.getpid()) > 0
    burned = {idle: idle_seconds(idle) for idle in ("block", "spin")}
    ratio = burned["spin"] / max(burned["block"], 2 * truth.HALF_A_TICK)  # finer than a tick nothing can be read
    assert ratio > 5, f"CPU time while idle: {burned}"
    cost(f"idle, the spinning engine burns {ratio:.0f} x the CPU time of the blocking one")


def idle_seconds(idle: str) -> float:
    """CPU time, as the solution reads it, that the ranks of an engine take in a second without requests."""
    with Engine(device="sim", stage="peer", tp_size=2, idle=idle) as engine:
        engine.generate("Hello", {"max_new_tokens": 2})
        ranks = [report.pid for report in engine.processes if "TP" in report.name]
        time.sleep(0.3)  # the end of the start
        before = sum(map(adapters.cpu_seconds, ranks))
        time.sleep(1)
        return sum(map(adapters.cpu_seconds, ranks)) - before
