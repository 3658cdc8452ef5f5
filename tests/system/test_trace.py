"""A trace of each stage: every process and thread of it, parts that add up, an arrow for each request."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from common.args import EngineArgs
from common.tokenizer import Tokenizer
from common.tracing import DISTRIBUTE
from evolution import Engine
from evolution.checks import resolve_args
from evolution.requests import RequestMaker
from evolution.run import run_stage
from evolution.workload import make_workload
from report.accounts import agreements
from report.distribute import STEPS, distribute_split, replicas
from report.perfetto import chrome_trace
from report.trace import WAITS, ThreadTrace, counts_of, load, parts_of, working_turns

REQUESTS = 6
SHAPES = [(stage, tp, dp) for tp, dp in ((2, 1), (1, 2)) for stage in ("rpyc", "broadcast", "peer")] + [("rpyc", 1, 1)]


@pytest.mark.parametrize(("one_stage", "tp_size", "dp_size"), SHAPES)
def test_every_thread_and_request_is_traced(tmp_path: Path, one_stage: str, tp_size: int, dp_size: int) -> None:
    with Engine(
        model_path="tiny", stage=one_stage, tp_size=tp_size, dp_size=dp_size, trace_dir=str(tmp_path)
    ) as engine:
        params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
        engine.generate(["The capital of France is"] * REQUESTS, params)
        processes = {report.name for process in engine.processes for report in process.walk()}
    threads = load(tmp_path)
    assert {thread.process for thread in threads} == processes | {"main"}
    check_parts([thread for thread in threads if thread.plans], tp_size)
    check_arrows(chrome_trace(threads)["traceEvents"])


def check_parts(planners: list, tp_size: int) -> None:
    assert planners
    for thread in planners:
        turns = list(range(1, len(thread.turns)))
        assert all(turn.ended for turn in thread.turns[1:])
        parts = parts_of(thread, turns)
        assert {"process_input_requests", "get_next_batch_to_run", "forward", "process_batch_result"} <= set(parts)
        assert parts["forward"][0] > 0
        if tp_size > 1:
            assert parts.keys() & set(DISTRIBUTE)
        # CPU time: on a loaded machine a thread may lose the core anywhere.
        assert parts["other"][1] < 0.2 * sum(cpu for name, (_, cpu) in parts.items() if name not in WAITS)
        if "rpyc" not in thread.process and tp_size > 1:  # rank 0 counts them for all
            collectives = counts_of(thread, turns).get("collectives", 0)
            assert collectives >= 8 if thread.process.endswith("TP0") else collectives == 0
        if "rpyc" in thread.process:  # a reply is a message, and so are those of each further call
            counts = counts_of(thread, working_turns(thread))
            assert counts["messages"] >= 7
            assert counts["bytes"] > 20 * counts["messages"]
            assert "pickles" not in counts


def test_what_the_router_does_is_not_the_ranks_transport(tmp_path: Path) -> None:
    """0.1.5 slept 30 ms after a turn with output."""
    with Engine(model_path="tiny", stage="rpyc", tp_size=2, constants="era", trace_dir=str(tmp_path)) as engine:
        engine.generate("Hello", {"max_new_tokens": 25, "temperature": 0, "ignore_eos": True}, stream=False)
    threads = {thread.process: thread for thread in load(tmp_path)}
    router, rank0 = threads["evo-router"], threads["evo-rpyc TP0"]
    slept = parts_of(router, working_turns(router))["pacing_sleep"][0]
    waited = parts_of(rank0, working_turns(rank0))["wait_for_router"][0]
    assert slept > 0.5e6 * len(working_turns(router))
    assert waited > 0
    assert "transport" not in parts_of(rank0, working_turns(rank0))


@pytest.mark.parametrize("one_stage", ["rpyc", "broadcast", "peer"])
@pytest.mark.parametrize("scheduling", ["replicated", "rank0"])
def test_parts_and_cpu_times_can_be_trusted(tmp_path: Path, one_stage: str, scheduling: str) -> None:
    """Rank 0's `other` is under 5% of a working turn; the CPU times are the operating system's within 3%."""
    args, config = resolve_args(
        EngineArgs(device="sim", stage=one_stage, scheduling=scheduling, tp_size=2, trace_dir=str(tmp_path))
    )
    options = argparse.Namespace(
        prompt=None,
        input_ids=None,
        num_prompts=16,
        input_len=64,
        output_len=200,
        max_new_tokens=None,
        request_rate=float("inf"),
        temperature=0.0,
        top_p=None,
        top_k=None,
        seed=None,
        random_seed=42,
    )
    workload = make_workload(options, RequestMaker(args, config, Tokenizer(args.model_path)))
    result = run_stage(args, workload, Console(quiet=True))
    threads = load(tmp_path)
    rank0 = next(thread for thread in threads if thread.process.endswith("TP0"))
    parts = parts_of(rank0, working_turns(rank0))
    assert parts["other"][0] < 0.05 * sum(wall for name, (wall, _) in parts.items() if name not in WAITS)
    check_split(threads, rank0)
    rows = agreements(threads, *result.accounts)
    assert {(row.process, row.thread) for row in rows} >= {("main", "receiver"), (rank0.process, "loop")}
    for row in rows:
        # main reads the accounts itself, between the two clocks; a part of what it has is its progress bar's thread.
        slack = 4e6 + row.ended
        assert abs(row.traced - row.account) < 0.03 * row.account + (slack if row.process == "main" else 0.5e6), row


def check_split(threads: list, rank0: ThreadTrace) -> None:
    """All steps of it are there, and lie within a turn."""
    (replica,) = replicas(threads)
    assert [thread.process[-3:] for thread in replica[-2:]] == ["TP0", "TP1"]
    split = distribute_split(replica, working_turns(replica[0]))
    assert tuple(split) == STEPS
    assert all(us >= 0 for us in split.values()) and split["transport"] > 0
    turns = working_turns(rank0)
    wall = median(sum(part.wall for part in rank0.turns[turn].parts) for turn in turns) / 1000
    assert sum(split.values()) < 1.5 * wall


@pytest.mark.parametrize(
    ("one_stage", "process", "wait"),
    [("broadcast", "evo-tp-server TP1", "transport"), ("rpyc", "evo-rpyc TP1", "wait_for_router")],
)
def test_a_follower_that_holds_no_scheduler_knows_an_idle_wait(
    tmp_path: Path, one_stage: str, process: str, wait: str
) -> None:
    with Engine(model_path="tiny", stage=one_stage, tp_size=2, scheduling="rank0", trace_dir=str(tmp_path)) as engine:
        params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
        for _ in range(3):
            time.sleep(0.3)
            engine.generate("Hello", params)
    threads = {thread.process: thread for thread in load(tmp_path)}
    follower = threads[process]
    parts = parts_of(follower, list(range(1, len(follower.turns) - 1)))  # nothing says what the last wait was for
    assert parts["idle"][0] > 0.5e9
    assert 0 < parts[wait][0] < 0.3e9


def check_arrows(events: list[dict]) -> None:
    """Each request is one chain from main to main, and each of its ends lies in a slice of its thread."""
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    chains = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            chains[event["id"]].append(event)
            here = slices[event["pid"], event["tid"]]
            assert any(begin <= event["ts"] <= end for begin, end in here), event
    assert len(chains) == REQUESTS
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    for chain in chains.values():
        assert [event["ph"] for event in chain] == ["s", "t", "t", "f"]
        assert names[chain[0]["pid"]] == names[chain[-1]["pid"]] == "0 main"
        assert "TP0" in names[chain[1]["pid"]]
        assert names[chain[2]["pid"]].endswith("evo-detokenizer")


def test_the_command_writes_a_file_for_perfetto(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evolution", "trace", "--model-path", "tiny", "--stage", "broadcast"]
    command += ["--tp-size", "2", "--num-prompts", "4", "--out", str(tmp_path / "trace.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "get_next_batch_to_run" in done.stdout
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"]["device"] == "cpu"
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["0 main", "1 evo-controller TP0", "2 evo-tp-server TP1", "3 evo-detokenizer"]
    begins = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begins[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for thread in begins.values():
        assert thread == sorted(thread)  # nested: the outer slice comes first


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (["--out", str(tmp_path / "no" / "trace.json")], "--out"),
        (["--stage", "all", "--out", "x.json"], "a trace is of one stage"),
        (["--trace-dir", str(tmp_path / "no"), "--out", str(tmp_path / "x.json")], "--trace-dir"),
    ):
        command = [sys.executable, "-m", "evolution", "trace", "--model-path", "tiny", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert words in done.stderr and done.stderr.count("\n") == 1
