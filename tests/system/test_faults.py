"""Real engines, real failures: who is told, when, and what is left. `make nightly` runs the whole table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.args import EngineArgs
from evolution import Engine, EngineError
from evolution.faults_args import PHASES
from evolution.stages import fill_in, known_processes
from experiments.faults.table import Case, all_cases, run_case

LONG = {"max_new_tokens": 900, "temperature": 0, "ignore_eos": True}
SHORT = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
TINY = {"model_path": "tiny", "max_total_tokens": 4096}


def process_names(stage: str, tp: int, dp: int) -> list[str]:
    return known_processes(fill_in(EngineArgs(stage=stage, tp_size=tp, dp_size=dp)))[1:]


@pytest.mark.parametrize(
    ("kind", "rank", "phase"),
    [("kill", "TP0", "start"), ("kill", "TP0", "idle"), ("raise", "TP1", "prefill"), ("abort", "TP1", "decode")],
)
def test_a_failure_is_told_in_time_and_nothing_is_left(stage, kind, rank, phase, nothing_left_behind):
    name = next(name for name in process_names(stage, 2, 1) if name.endswith(rank))
    row = run_case(Case(stage, 2, 1, kind, name, phase))
    assert row.verdict == "right", row


def test_a_rank_that_is_stopped_when_idle_is_found_at_the_next_request(stage, nothing_left_behind):
    name = next(name for name in process_names(stage, 2, 1) if name.endswith("TP1"))
    row = run_case(Case(stage, 2, 1, "stop", name, "idle"))
    assert row.verdict == "right", row
    assert "is stopped" in row.saw


def faults(tmp_path: Path, name: str, *options: str) -> list[dict]:
    """The rows that `faults` wrote, none of them wrong. `make nightly` keeps the files."""
    folder = Path(os.environ.get("EVOLUTION_RESULTS", tmp_path)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"faults-{name}.json"
    command = [sys.executable, "-m", "evolution", "faults", "--tp-size", "2", "--json", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    rows = json.loads(file.read_text())["rows"]
    assert rows and all(row["verdict"] == "right" for row in rows)
    return rows


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("dp", [1, 2])
def test_the_whole_table(stage, dp, phase, tmp_path, nothing_left_behind):
    rows = faults(tmp_path, f"{stage}-dp{dp}-{phase}", "--stage", stage, "--dp-size", str(dp), "--phase", phase)
    assert len(rows) == len([case for case in all_cases(stage, 2, dp) if case.phase == phase])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("dp", "count"), [(1, 34), (2, 33)])
def test_random_kills_under_load(stage, dp, count, tmp_path, nothing_left_behind):
    """201 in all, over six shapes."""
    options = ["--stage", stage, "--dp-size", str(dp), "--kills", str(count), "--seed", "1"]
    kills = faults(tmp_path, f"{stage}-dp{dp}-kills", *options)
    assert len(kills) == count
    assert kills[-1]["files"] <= kills[0]["files"], "the main process keeps files open"
    assert sum(kill["results"] for kill in kills) > 0


# ---------------------------------------------------------------------- hangs


def test_a_rank_that_hangs_in_a_collective_is_named_and_stacks_are_shown(caplog):
    """It sleeps where the others wait for it: all of them are asleep."""
    with Engine(tp_size=2, watchdog_timeout=1.0, fault="TP1: hang at turn 5", **TINY) as engine:
        with pytest.raises(EngineError, match="evo-peer TP1 .* hangs: the other ranks of replica 0 are ahead"):
            engine.generate("Hello", LONG)
        assert not engine.health().ok and engine.health().cause.startswith("evo-peer TP1")
    assert "[evo-peer TP1 (pid" in caplog.text and "common/faults.py" in caplog.text


def test_a_slow_rank_is_no_hang():
    with Engine(tp_size=2, watchdog_timeout=1.0, fault="TP1: slow 300 ms at turn 2", **TINY) as engine:
        assert engine.generate("Hello", {**SHORT, "max_new_tokens": 6})["output_ids"]
        assert engine.health().ok


def test_ranks_that_sample_with_seeds_of_their_own_give_what_rank_0_has():
    """What a version without a common seed did: nothing ends, and the ranks no longer agree."""
    params = {"max_new_tokens": 20, "temperature": 1.0, "ignore_eos": True, "stop": "never to be seen"}
    with Engine(tp_size=2, **TINY) as engine:
        clean = engine.generate("Hello", params)["output_ids"]
    with Engine(tp_size=2, watchdog_timeout=5.0, fault="TP0: own seed at turn 1", **TINY) as engine:
        assert engine.generate("Hello", params)["output_ids"] != clean


PARTED = [
    "TP1: own seed at turn 1",
    pytest.param("TP1: own clock at turn 12", marks=pytest.mark.slow),
    pytest.param("TP1: noise 50 at turn 5", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("fault", PARTED)
def test_ranks_that_part_are_found(fault, nothing_left_behind):
    """At the first turn in which one of them plans another batch; test_lockstep.py has such traffic without a fault."""
    pool = {"model_path": "tiny", "max_total_tokens": 128, "max_running_requests": 4}
    prompts = [[(7 * index + j) % 250 for j in range(20 + index % 3)] for index in range(12)]
    params = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True, "stop_token_ids": list(range(0, 250, 3))}
    with (
        Engine(tp_size=2, check_divergence=1, fault=fault, watchdog_timeout=10.0, **pool) as engine,
        pytest.raises(EngineError, match=r"turn \d+: rank\(s\) 1 planned another batch than rank 0"),
    ):
        for _ in range(4):  # several at once: a rank that has nothing left to do plans no batch, and hangs
            engine.generate(input_ids=prompts, sampling_params=params)


def test_a_run_that_fails_has_another_exit_status_than_0(tmp_path):
    command = [sys.executable, "-m", "evolution", "run", "--model-path", "tiny", "--stage", "broadcast"]
    command += ["--tp-size", "2", "--fault", "TP1: die at turn 5"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "evo-tp-server TP1" in result.stderr and "was killed by SIGKILL" in result.stderr


# ---------------------------------------------------------------------- replicas


def test_the_other_replica_goes_on(stage, nothing_left_behind):
    """What has streamed nothing is computed again, with the same tokens; what has is failed; both know the cause."""
    fault = "DP1 TP0: die at turn 12"
    with Engine(stage=stage, dp_size=2, on_replica_failure="degrade", fault=fault, **TINY) as engine:
        streamed = engine.submit(engine.make_requests(["Hello"] * 2, SHORT, stream=True)[1])
        whole = engine.submit(engine.make_requests(["Hello"] * 2, SHORT)[1])
        expected = streamed[0].result()["output_ids"]
        with pytest.raises(EngineError, match=r"replica 1 was lost: evo-\S+ DP1 TP0 \(pid \d+\) was killed by SIGKILL"):
            streamed[1].result()
        assert [stream.result()["output_ids"] for stream in whole] == [expected] * 2
        health = engine.health()
        assert health.ok and health.degraded and health.replicas_alive == [0]
        assert "DP1 TP0" in health.cause and "\n" not in health.cause
        assert [r["output_ids"] for r in engine.generate(["Hello"] * 4, SHORT)] == [expected] * 4
        assert len(engine.stats()) == 1 and engine.flush_cache()
        began = time.monotonic()
    assert time.monotonic() - began < 3, "the processes that are left did not leave when asked"


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_a_replica_that_hangs_is_taken_out_and_the_last_one_ends_the_engine(stage, tp, nothing_left_behind):
    settings = {"stage": stage, "tp_size": tp, "dp_size": 2, "watchdog_timeout": 1.5, **TINY}
    with Engine(on_replica_failure="degrade", fault=f"DP0 TP{tp - 1}: stop at turn 5", **settings) as engine:
        results = engine.generate(["Hello"] * 4, SHORT)
        assert len({tuple(result["output_ids"]) for result in results}) == 1
        assert engine.health().replicas_alive == [1]
        assert "is stopped" in engine.health().cause and f"DP0 TP{tp - 1}" in engine.health().cause
        last = [n.pid for report in engine.processes for n in report.walk() if n.name.endswith(f"DP1 TP{tp - 1}")]
        stream = engine.generate("Hello", LONG, stream=True)
        next(stream)
        os.kill(last[0], signal.SIGKILL)
        with pytest.raises(EngineError, match="DP1 TP.* was killed by SIGKILL"):
            list(stream)
        assert not engine.health().ok


@pytest.mark.slow
def test_an_idle_replica_that_dies_is_taken_out_before_anybody_asks(stage):
    with Engine(stage=stage, tp_size=2, dp_size=2, on_replica_failure="degrade", **TINY) as engine:
        victim = next(n for report in engine.processes for n in report.walk() if n.name.endswith("DP0 TP1"))
        os.kill(victim.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while not engine.health().degraded and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.health().replicas_alive == [1]
        assert len(engine.generate(["Hello"] * 6, SHORT)) == 6


@pytest.mark.parametrize(
    "settings",
    [{"on_replica_failure": "degrade"}, {"on_replica_failure": "degrade", "dp_size": 2, "supervision": "era"}],
)
def test_degrading_alone_or_in_an_era_is_refused(settings):
    with pytest.raises(ValueError, match="degrade goes with --dp-size above 1 and with --supervision full"):
        Engine(**TINY, **settings)


# ---------------------------------------------------------------------- eras

# (stage, TP, DP, fault, whether the main process was told in that version)
ERAS = [
    ("rpyc", 2, 1, "TP1: die at turn 5", False),
    ("broadcast", 2, 1, "TP0: raise at turn 5", True),
    ("broadcast", 1, 2, "DP1 TP0: raise at turn 5", False),
    ("peer", 1, 2, "DP0 TP0: raise at turn 5", False),
    pytest.param("rpyc", 2, 1, "TP0: raise at turn 5", False, marks=pytest.mark.slow),
    pytest.param("rpyc", 1, 1, "TP0: raise at turn 5", False, marks=pytest.mark.slow),
    pytest.param("rpyc", 2, 2, "DP1 TP1: die at turn 5", True, marks=pytest.mark.slow),
    pytest.param("broadcast", 2, 1, "TP1: raise at turn 5", False, marks=pytest.mark.slow),
    pytest.param("peer", 2, 1, "TP1: raise at turn 5", True, marks=pytest.mark.slow),
    pytest.param("peer", 2, 1, "TP1: die at turn 5", False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("era", "tp", "dp", "fault", "told"), ERAS)
def test_what_an_era_noticed(era, tp, dp, fault, told, nothing_left_behind):
    """Where nobody told the main process, it says that all is well until the limit."""
    settings = {"stage": era, "tp_size": tp, "dp_size": dp, "fault": fault, "supervision": "era", "era_hang_limit": 2.5}
    with Engine(**settings, **TINY) as engine:
        began = time.monotonic()
        streams = engine.submit(engine.make_requests(["Hello"] * (2 * dp), LONG)[1])
        failing = [stream for index, stream in enumerate(streams) if dp == 1 or f"DP{index % dp}" in fault]
        hangs = not failing[0].done.wait(1.8)
        assert hangs != told
        assert engine.health().ok != told
        for stream in failing:
            with pytest.raises(EngineError):
                stream.result()
        assert time.monotonic() - began < 6
        assert not engine.health().ok
