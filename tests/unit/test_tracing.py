"""Traces: what is written is read, parts add up to their turn, and no trace is no work."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from common.tracing import FLUSH_AT, NO_TRACE, NOT_READ, PARTS, Trace, make_trace, read_trace
from report.perfetto import chrome_trace
from report.trace import ThreadTrace, counts_of, cpu_of, load, parts_of, sampled_of, shown_order, working_turns


def one_turn(trace: Trace) -> None:
    trace.turn()
    trace.part("recv_requests")
    trace.request("received", "r17")
    trace.part("forward")
    trace.count("bytes", 5)
    trace.part("send_output")


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    one_turn(trace)
    trace.close()
    (path,) = tmp_path.glob("*.trace")
    who, records = read_trace(path)
    assert (who["process"], who["thread"]) == ("evo-peer TP0", "loop")
    names = ["turn", "recv_requests", "received", "forward", "bytes", "send_output", "turn"]
    assert [record.name for record in records] == names
    assert [record.value for record in records] == [1, 0, 17, 0, 5, 0, 0]
    read = [record.wall_ns for record in records if record.name != "bytes"]
    assert read[0] > NOT_READ and read == sorted(read)
    read = [record.cpu_ns for record in records if record.name not in ("received", "bytes")]
    assert read[0] > NOT_READ and read == sorted(read)


def test_the_cpu_clock_is_read_in_each_turn_and_in_the_parts_of_every_seventh(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    for _ in range(16):
        one_turn(trace)
    trace.close()
    (path,) = tmp_path.glob("*.trace")
    records = [record for record in read_trace(path)[1] if record.name not in ("received", "bytes")]
    assert all(record.cpu_ns != NOT_READ for record in records if record.name == "turn")
    turns = [records[begin : begin + 4] for begin in range(0, 4 * 16, 4)]
    sampled = [n for n, turn in enumerate(turns, 1) if all(record.cpu_ns != NOT_READ for record in turn)]
    assert sampled == [1, 8, 15]
    assert all(record.cpu_ns == NOT_READ for n, turn in enumerate(turns, 1) if n not in sampled for record in turn[1:])
    (thread,) = load(tmp_path)
    assert [n for n, turn in enumerate(thread.turns) if turn.sampled] == sampled
    assert len(thread.turns) == 17
    assert sampled_of(thread, list(range(2, 17))) == {"other": (15, 2)}


def test_a_killed_process_leaves_its_full_buffers(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    turns = 0
    while not (content := next(tmp_path.glob("*.trace")).read_bytes().partition(b"\n")[2]):
        one_turn(trace)
        turns += 1
    assert FLUSH_AT <= turns * 6 * 4 <= FLUSH_AT + 2 * 6 * 4
    path = tmp_path / "cut.trace"
    path.write_bytes(b'{"process":"p","thread":"t","pid":1,"tid":1}\n' + content[:-5])
    assert len(read_trace(path)[1]) == len(content) // 32 - 1
    thread = next(thread for thread in load(tmp_path) if thread.process == "p")
    assert not thread.turns[-1].ended
    assert parts_of(thread, [len(thread.turns) - 1]) == {}


def test_a_process_killed_at_once_leaves_an_empty_trace(tmp_path: Path) -> None:
    if not (pid := os.fork()):
        Trace(tmp_path, "evo-peer TP0", "loop").part("forward")
        os._exit(1)
    os.waitpid(pid, 0)
    (thread,) = load(tmp_path)
    assert (thread.process, thread.turns[0].parts, len(thread.turns)) == ("evo-peer TP0", [], 1)


def test_a_part_lasts_as_long_as_what_is_done_in_it(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    trace.turn()
    trace.part("idle")
    time.sleep(0.05)
    trace.part("forward")
    burn(0.03)
    trace.close()
    (thread,) = load(tmp_path)
    parts = parts_of(thread, [1])
    assert parts["idle"][0] >= 50e6 and parts["idle"][1] < 20e6
    assert parts["forward"][0] >= 30e6 and 30e6 <= parts["forward"][1] < 40e6


def test_parts_add_up_to_the_turns(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    for _ in range(50):
        one_turn(trace)
    trace.close()
    (thread,) = load(tmp_path)
    _, records = read_trace(next(tmp_path.glob("*.trace")))
    turns = [record for record in records if record.name == "turn"]
    numbers = list(range(1, len(thread.turns)))
    assert len(numbers) == len(turns) - 1 == 50
    parts = parts_of(thread, numbers)
    assert set(parts) == {"other", "recv_requests", "forward", "send_output"} <= set(PARTS)
    assert sum(wall for wall, _ in parts.values()) == turns[-1].wall_ns - turns[0].wall_ns
    exact = turns[-1].cpu_ns - turns[0].cpu_ns
    assert cpu_of(thread, numbers) == exact
    assert abs(sum(cpu for _, cpu in parts.values()) - exact) <= len(parts)
    assert counts_of(thread, numbers) == {"bytes": 250}
    assert counts_of(thread, [3, 4]) == {"bytes": 10}
    sampled = thread.turns[8]
    assert sampled.sampled
    alone = parts_of(thread, [8])
    for part in sampled.parts:  # a clock of two read after the other may be ahead of it
        assert alone[part.name] == (part.wall, pytest.approx(part.cpu, abs=3000))


def test_each_kind_of_turn_divides_by_its_own_sampled_ones(tmp_path: Path) -> None:
    """A decode turn: 1 ms of scheduling, 1 ms of forward. Of a prefill: 1 ms of scheduling, 7 ms of forward."""
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    for number in range(1, 23):
        trace.turn()
        trace.part("get_next_batch_to_run")
        burn(0.001)
        trace.part("forward")
        if number in (8, 9, 17):
            trace.count("prefills", 1)
            burn(0.006)
        burn(0.001)
    trace.close()
    (thread,) = load(tmp_path)
    turns = working_turns(thread)
    assert sampled_of(thread, turns) == {"prefill": (3, 1), "other": (19, 3)}
    parts = parts_of(thread, turns)
    assert parts["get_next_batch_to_run"][1] == pytest.approx(22e6, rel=0.1)
    assert parts["forward"][1] == pytest.approx(3 * 7e6 + 19e6, rel=0.1)
    # Without a sampled one: 17 is a prefill that was not, whose wall time is all there is.
    alone = parts_of(thread, [17])
    assert sum(cpu for _, cpu in alone.values()) == pytest.approx(cpu_of(thread, [17]), abs=len(alone))
    share = alone["forward"][0] / sum(wall for wall, _ in alone.values())
    assert alone["forward"][1] == pytest.approx(share * cpu_of(thread, [17]), abs=1)


def test_a_rare_event_in_a_sampled_turn_is_not_multiplied(tmp_path: Path) -> None:
    """The first of 14 turns is sampled, and spends 20 ms in what takes nothing in the others: two sampled turns of 14
    would make 140 ms of it. On a loaded machine the wall time, which is the limit, is more than 20 ms."""
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    for number in range(14):
        trace.turn()
        trace.part("sample")
        burn(0.02 if number == 0 else 0)
        trace.part("forward")
        burn(0.002)
    trace.close()
    (thread,) = load(tmp_path)
    turns = working_turns(thread)
    parts = parts_of(thread, turns)
    assert 18e6 < parts["sample"][1] <= parts["sample"][0] * 1.05
    assert sum(cpu for _, cpu in parts.values()) == pytest.approx(cpu_of(thread, turns), rel=1e-6)


def test_a_window_holds_the_turns_that_began_in_it(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    begins = []
    for number in range(10):
        begins.append(time.perf_counter_ns())
        trace.turn()
        trace.part("forward")
        trace.count("bytes", number)
        trace.count("running", number)
        trace.request("received", f"r{number}")
    trace.close()
    (thread,) = load(tmp_path)
    window = thread.within(begins[3], begins[6])
    assert (window.pid, window.tid, window.plans) == (thread.pid, thread.tid, True)
    assert working_turns(window) == [1, 2, 3]
    assert counts_of(window, [1, 2, 3]) == {"bytes": 3 + 4 + 5}
    assert [record.value for record in window.levels] == [record.value for record in window.requests] == [3, 4, 5]
    assert parts_of(window, [1, 2, 3]) == parts_of(thread, [4, 5, 6])
    assert working_turns(thread.within(0, begins[0])) == []
    assert working_turns(thread.within(0, time.perf_counter_ns())) == list(range(1, 11))


def test_a_task_that_runs_while_another_waits_has_a_place_of_its_own(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-router", "loop")
    trace.turn()
    for part in ("transport", "decode"):
        trace.part(part)
        trace.part("recv_requests")
        trace.back()
    trace.close()
    (thread,) = load(tmp_path)
    names = ["other", "transport", "recv_requests", "transport", "decode", "recv_requests", "decode"]
    assert [part.name for part in thread.turns[1].parts] == names


def test_the_clock_at_a_moment_is_its_last_reading(tmp_path: Path) -> None:
    """Turns of 5 ms of CPU, of which the first is sampled. In a sampled turn each part is a reading."""
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    before = time.perf_counter_ns()
    clock, moments = [], []
    for _ in range(2):
        trace.turn()
        clock.append(time.thread_time_ns())
        burn(0.005)
        trace.part("idle")
        time.sleep(0.001)
        moments.append(time.perf_counter_ns())
    trace.close()
    (thread,) = load(tmp_path)
    assert thread.cpu_at(before) is None
    assert thread.cpu_at(moments[0]) == pytest.approx(clock[0] + 5e6, abs=1e6)
    assert thread.cpu_at(moments[1]) == pytest.approx(clock[1], abs=1e6)


def test_another_thread_may_close_it(tmp_path: Path) -> None:
    """As the one that closes the engine does with every caller's: the CPU clock of the owner is out of its reach."""
    trace = Trace(tmp_path, "main", "caller")
    one_turn(trace)
    one_turn(trace)
    closing = threading.Thread(target=trace.close)
    closing.start()
    closing.join()
    (thread,) = load(tmp_path)
    assert [turn.ended for turn in thread.turns] == [False, True, False]
    assert [part.name for part in thread.turns[2].parts] == ["other", "recv_requests", "forward"]


def test_no_folder_no_trace(tmp_path: Path) -> None:
    assert make_trace(None, "evo-peer TP0") is NO_TRACE
    for call in (NO_TRACE.turn, NO_TRACE.back, NO_TRACE.close):
        assert call() is None
    assert NO_TRACE.part("forward") is NO_TRACE.count("bytes", 1) is NO_TRACE.request("received", "r1") is None
    assert not NO_TRACE.on


@pytest.mark.parametrize("name", ["forwards", "turns"])
def test_a_part_without_a_name_of_ours_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyError):
        Trace(tmp_path, "p", "t").part(name)


def test_waits_leave_gaps_between_slices(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    trace.turn()
    for part in ("idle", "recv_requests", "prepare", "forward", "sample", "idle", "send_output"):
        trace.part(part)
    trace.close()
    slices = [event for event in chrome_trace(load(tmp_path))["traceEvents"] if event["ph"] == "X"]
    names = ["turn 1", "other", "turn 1", "recv_requests", "run_batch", "prepare", "forward", "sample", "turn 1"]
    assert [event["name"] for event in slices] == [*names, "send_output"]


def test_the_order_is_that_of_a_requests_way() -> None:
    names = ["evo-detokenizer", "evo-rpyc TP1", "main", "evo-rpyc TP0", "evo-router"]
    threads = [ThreadTrace(name, "loop", pid, pid) for pid, name in enumerate(names)]
    assert [thread.process for thread in sorted(threads, key=shown_order)] == [
        "main",
        "evo-router",
        "evo-rpyc TP0",
        "evo-rpyc TP1",
        "evo-detokenizer",
    ]
