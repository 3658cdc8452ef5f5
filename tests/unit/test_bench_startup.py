"""`bench startup`: one real start of each stage in the order of its steps, and the parts add up."""

from __future__ import annotations

import argparse

import pytest

from experiments.bench import startup
from experiments.bench.startup_plot import draw

STEPS = ("spawned", "running", "imported", "loaded", "ready")


def test_the_parts_are_those_of_the_last_rank_and_add_up():
    main = {"running": 0.1, "imported": 0.3, "called": 0.3, "checked": 0.4, "launched": 0.6, "ready": 3.0}
    early = {"spawned": 0.5, "running": 0.7, "imported": 2.0, "loaded": 2.2, "ready": 2.9}
    late = {"spawned": 0.6, "running": 1.0, "imported": 2.5, "loaded": 2.6, "ready": 2.9}
    processes = {"main": {**main, "first token": 3.5}, "evo-peer TP0": late, "evo-peer TP1": early, "evo-router": {}}
    parts = startup.split(processes)
    assert list(parts) == list(startup.PARTS)
    assert sum(parts.values()) == pytest.approx(3.5)
    assert parts["rank: imports"] == pytest.approx(1.5)
    assert parts["first turn"] == pytest.approx(0.5)


def test_a_stage_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match="(?s)stage nonsense did not start.*unknown stage 'nonsense'"):
        startup.start_once("nonsense")


def test_repeats_are_checked():
    with pytest.raises(ValueError, match="--repeats must be at least 1, not 0"):
        startup.run(argparse.Namespace(repeats=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", startup.STAGES)
def test_every_process_reports_its_steps_in_order(name):
    processes = startup.start_once(name)
    ranks = {process: times for process, times in processes.items() if "loaded" in times}
    assert len(ranks) == 2
    assert "evo-detokenizer" in processes
    for times in ranks.values():
        reached = [times[step] for step in STEPS]
        assert reached == sorted(reached)
    main = processes["main"]
    assert list(main.values()) == sorted(main.values())
    assert all(seconds > -1e-6 for seconds in startup.split(processes).values())


def test_the_result_is_shown_and_drawn(tmp_path):
    result = startup.measure(["peer"], repeats=1)
    assert {arm: len(seconds) for arm, seconds in result["samples"].items()} == {
        startup.ONE: 1,
        startup.TWO: 1,
        "peer": 1,
    }
    assert set(result["verdicts"]) == {"peer"}
    startup.show(result)
    assert len(draw(result, tmp_path)) == 2
