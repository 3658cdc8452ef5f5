"""`bench distribute`: what it reads from traces made by hand, and one short round with real engines."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from common.batch import BatchPlan
from common.tracing import Record
from evolution import cli
from experiments.bench import distribute, distribute_engine
from experiments.bench.distribute_floor import RUNNING, Answering, output_for, plan_for
from experiments.bench.distribute_plot import draw
from experiments.bench.distribute_turns import RunTrace, Turns
from experiments.bench.mechanism_payloads import make_messages
from report.trace import Part, ThreadTrace, Turn


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    distribute.add_arguments(parser)
    return parser.parse_args(list(arguments))


def thread(process: str, *turns: str) -> ThreadTrace:
    """Turns written as `name begin end`, separated by commas; in us, each with 1 us of CPU time."""
    trace = ThreadTrace(process, "loop", 1, 1)
    for turn in turns:
        words = [part.split() for part in turn.split(",")]
        parts = [Part(name, int(begin) * 1000, int(end) * 1000, 1000) for name, begin, end in words]
        trace.turns.append(Turn(0, sampled=True, cpu=1000 * len(parts), parts=parts))
    return trace


def record(name: str, us: int, value: int = 0) -> Record:
    return Record(name, us * 1000, 0, value)


def broadcast_run() -> RunTrace:
    """In the second turn TP1 comes 25 us after rank 0 began to send, in the third it waits for rank 0."""
    rank0 = thread(
        "evo-peer TP0",
        "recv_requests 0 5,transport 5 20,forward 20 100,send_output 100 110",
        "recv_requests 110 120,encode 120 125,transport 125 180,forward 180 300,send_output 300 310",
        "recv_requests 310 330,encode 330 335,transport 335 400,forward 400 500,send_output 500 510",
    )
    rank1 = thread(
        "evo-peer TP1",
        "transport 0 20,forward 20 100,process_batch_result 100 150",
        "transport 150 190,forward 190 300,send_output 300 310",
        "transport 310 405,decode 405 415,forward 415 500,send_output 500 510",
    )
    rank0.levels, rank0.plans = [record("running", us, value) for us, value in ((100, 16), (500, 0))], True
    rank0.requests = [record("received", 410, n) for n in range(16)]
    return RunTrace([rank1, rank0])


def test_a_broadcast_begins_when_the_last_rank_has_come() -> None:
    run = broadcast_run()
    turns = run.measure([2, 3])
    assert turns.wall == [(125 - 120) + (190 - 150), 415 - 330]
    assert turns.late == [150 - 125, 310 - 335]
    # from one turn's beginning to the next, without what the first one's input took
    assert turns.pause == [110 - 15, 200 - 70]


def test_turns_are_told_by_what_ran_and_what_came() -> None:
    run = broadcast_run()
    assert run.decode_turns(16) == [[2]]  # the first began before 16 ran, in the third 16 came
    assert run.decode_turns(15) == []
    assert run.arrival_turns(16) == [3]
    assert run.encoding_began(410_000) == 330_000


def test_own_cpu_leaves_out_the_forward_and_the_broadcast() -> None:
    assert broadcast_run().own_cpu_us([2, 3]) == {"recv_requests": 1.0, "send_output": 1.0}


def test_planning_is_the_mean_of_the_ranks_that_plan() -> None:
    rank0 = thread("evo-peer TP0", "process_input_requests 0 5,get_next_batch_to_run 5 9,forward 9 20")
    rank1 = thread("evo-peer TP1", "process_input_requests 0 5,forward 5 9")
    for rank in (rank0, rank1):
        rank.plans = True
    assert RunTrace([rank0, rank1]).planning_us([1]) == 1.5


def test_a_call_is_its_way_out_and_its_way_back() -> None:
    router = thread(
        "evo-router",
        "encode 0 5,transport 5 60,decode 60 70,encode 70 75,transport 75 400,decode 400 410,send_output 410 420",
    )
    rank0 = thread(
        "evo-rpyc TP0",
        "other 20 21,decode 21 30,get_next_batch_to_run 30 40,encode 40 45,wait_for_router 45 91,"
        "decode 91 100,forward 100 340,process_batch_result 340 350,encode 350 360,idle 360 500",
    )
    rank1 = thread("evo-rpyc TP1", "other 95 96,decode 96 110,forward 110 340,encode 340 345,idle 345 500")
    rank0.plans = True
    run = RunTrace([router, rank0, rank1])
    planned = (30 - 0) + (70 - 40)
    executed = (110 - 70) + (410 - 350)
    assert run.measure([1]).wall == [planned + executed]
    assert run.measure([1]).planning == 1.0  # of rank 0, which alone plans
    own = {"other": 1.0, "get_next_batch_to_run": 1.0, "process_batch_result": 1.0, "router": 1.0}
    assert run.own_cpu_us([1]) == own  # the router's is its send_output


def test_the_mechanism_answers_what_a_turn_answers() -> None:
    took: list = []
    rank = Answering(0, took.append)
    for payload, prefilled in (("0", 0), ("16", RUNNING)):
        plan = rank.plan(make_messages(payload))
        assert isinstance(plan, BatchPlan) and len(plan.prefill) == prefilled
        assert plan.sampled_count() == RUNNING
        rank.execute(plan)
        assert took.pop() == [plan_for(make_messages(payload))]
        assert rank.output() == output_for(make_messages(payload))
        assert rank.output().finished == prefilled


@pytest.mark.slow
def test_a_short_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(distribute_engine, "DECODE_TURNS", 30)
    monkeypatch.setattr(distribute_engine, "ARRIVALS", 6)
    monkeypatch.setattr(distribute, "STEPS", {"0": (2, 10), "16": (2, 5)})
    result = distribute.run(options("--repeats", "2", "--ranks", "2"))
    assert {(cell["stage"], cell["kind"]) for cell in result["cells"]} == {
        (arm.name, kind) for arm in distribute.ARMS for kind in distribute.KINDS
    }
    for cell in result["cells"]:
        assert [len(cell[name]) for name in ("wall", "floor", "floor_busy")] == [2, 2, 2]
        assert len(cell["floor"][0]) == (5 if cell["kind"] == "16" else 10)
        assert len(cell["wall"][0]) >= (1 if cell["kind"] == "16" else 20)
        assert min(cell["wall"][0]) > 0
        assert len(cell["floor_busy"][0]) == len(cell["floor"][0])
        judged = None if cell["kind"] == "0, streams" else "undecided"  # one round
        assert cell["verdict"] == cell["verdict_busy"] == judged
        assert cell["ratio_with_late"]["median"] >= cell["ratio"]["median"]
    for one in result["own"]:
        assert sum(one["totals"]) / 2 == pytest.approx(sum(one["parts"].values()))  # parts are means of the rounds
        assert not one["parts"].keys() & {"forward", "transport", "encode", "decode", "idle"}
    distribute.show(result)
    assert "CPU of rank 0, and of a router, in a decode turn" in capsys.readouterr().out
    assert all(Path(path).stat().st_size > 1000 for path in draw(result, tmp_path))


class Unpunctual(RunTrace):
    """16 requests that arrived together as often as asked."""

    def __init__(self, together: int) -> None:
        self._together = together

    def decode_turns(self, running: int) -> list[list[int]]:
        return [[1], [2], [3]]

    def arrival_turns(self, count: int) -> list[int]:
        return [4] * self._together

    def measure(self, numbers: list[int]) -> Turns:
        return Turns([1.0] * len(numbers))

    def own_cpu_us(self, numbers: list[int]) -> dict[str, float]:
        return {}


def test_an_engine_whose_requests_did_not_arrive_together_is_measured_again(monkeypatch, capsys) -> None:
    times = [distribute_engine.ARRIVALS // 2 - 1, 0, distribute_engine.ARRIVALS // 2]
    given = iter(times)
    monkeypatch.setattr(distribute_engine, "trace_engine", lambda *_: Unpunctual(next(given)))
    turns, _ = distribute_engine.measure_engine(distribute.ARMS[0], 2, 0)
    assert len(turns["16"].wall) == times[-1]
    assert capsys.readouterr().out.count("measured again") == 2
    monkeypatch.setattr(distribute_engine, "trace_engine", lambda *_: Unpunctual(1))
    with pytest.raises(SystemExit, match="in 3 engines the 16 requests did not arrive together"):
        distribute_engine.measure_engine(distribute.ARMS[0], 2, 0)


def test_the_plain_ratio_is_judged_and_the_busy_one_explains() -> None:
    arm = distribute.ARMS[3]
    rounds = [Turns(wall=[200.0], late=[50.0])] * 7
    bare = [([100.0], [200.0])] * 7
    cell = distribute.judge(arm, 4, "16", {(arm.name, 4, "16"): rounds}, {(arm.name, 4, "16"): bare})
    assert (cell["verdict"], cell["verdict_busy"]) == ("fails", "holds")
    assert (cell["ratio"]["median"], cell["ratio_with_late"]["median"]) == (2.0, 2.5)


@pytest.mark.parametrize("arguments", [("--repeats", "0"), ("--ranks", "1"), ("--ranks", "2,x"), ("--ranks", "2,2")])
def test_bad_options_are_one_line(arguments: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "distribute", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert arguments[0] in said and said.count("\n") == 1
