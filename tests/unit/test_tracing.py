"""Traces: what is written is read, parts add up to their turn, and no trace is no work."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from common.tracing import FLUSH_AT, NO_TRACE, PARTS, Trace, make_trace, read_trace
from report.trace import ThreadTrace, chrome_trace, counts_of, load, parts_of, shown_order


def one_turn(trace: Trace) -> None:
    trace.turn()
    trace.part("recv_requests")
    trace.request("received", "r17")
    trace.part("forward")
    trace.count("bytes", 5)
    trace.part("send_output")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    one_turn(trace)
    trace.close()
    (path,) = tmp_path.glob("*.trace")
    who, records = read_trace(path)
    assert (who["process"], who["thread"]) == ("evo-peer TP0", "loop")
    names = ["turn", "recv_requests", "received", "forward", "bytes", "send_output"]
    assert [record.name for record in records] == names
    assert [record.value for record in records] == [0, 0, 17, 0, 5, 0]
    assert all(a.wall_ns <= b.wall_ns and a.cpu_ns <= b.cpu_ns for a, b in zip(records, records[1:], strict=False))


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


def test_a_process_killed_at_once_leaves_an_empty_trace(tmp_path: Path) -> None:
    if not (pid := os.fork()):
        Trace(tmp_path, "evo-peer TP0", "loop").part("forward")
        os._exit(1)
    os.waitpid(pid, 0)
    (thread,) = load(tmp_path)
    assert (thread.process, thread.turns) == ("evo-peer TP0", [[]])


def test_a_part_lasts_as_long_as_what_is_done_in_it(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    trace.turn()
    trace.part("idle")
    time.sleep(0.05)
    trace.part("forward")
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        pass
    trace.turn()
    trace.close()
    (thread,) = load(tmp_path)
    parts = parts_of(thread, [1])
    assert parts["idle"][0] >= 50e6 and parts["idle"][1] < 20e6
    assert parts["forward"][0] >= 30e6 and 30e6 <= parts["forward"][1] < 40e6


def test_parts_add_up_to_the_turns(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "evo-peer TP0", "loop")
    for _ in range(50):
        one_turn(trace)
    trace.turn()
    trace.close()
    (thread,) = load(tmp_path)
    _, records = read_trace(next(tmp_path.glob("*.trace")))
    turns = [record for record in records if record.name == "turn"]
    numbers = list(range(1, len(thread.turns)))
    parts = parts_of(thread, numbers)
    assert set(parts) == {"other", "recv_requests", "forward", "send_output"} <= set(PARTS)
    assert sum(wall for wall, _ in parts.values()) == turns[-1].wall_ns - turns[0].wall_ns
    assert sum(cpu for _, cpu in parts.values()) == turns[-1].cpu_ns - turns[0].cpu_ns
    assert counts_of(thread, numbers) == {"bytes": 250}
    assert parts_of(thread, [3]) == {
        part.name: (part.end - part.begin, part.cpu) for part in thread.turns[3] if part.end > part.begin
    }
    assert counts_of(thread, [3, 4]) == {"bytes": 10}


def test_no_folder_no_trace(tmp_path: Path) -> None:
    assert make_trace(None, "evo-peer TP0") is NO_TRACE
    for call in (NO_TRACE.turn, NO_TRACE.close):
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
    trace.turn()
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
