"""Real processes, real kills: the supervisor hears of every death at any depth and names the first cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from common.processes import Failure, ProcessFailed, Supervisor, spawning
from common.processes.stacks import process_state, read_stacks
from evolution.start import StartFailed, wait_for_start

CHILDREN = "tests.helpers.children:"


class Watch:
    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.heard = threading.Event()

    def __call__(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.heard.set()


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def supervisor(watch):
    supervisor = Supervisor(watch)
    yield supervisor
    supervisor.kill()


def gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(_lives(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def test_ready_reports_carry_the_tree(supervisor):
    supervisor.start("evo-parent", CHILDREN + "parent_of", {"target": CHILDREN + "idle", "kwargs": {}, "count": 2})
    (report,) = supervisor.wait_ready(20)
    names = [node.name for node in report.walk()]
    assert names == ["evo-parent", "evo-grandchild 0", "evo-grandchild 1"]
    assert report.children[0].info == {"answer": 42}
    for node in report.walk():
        assert psutil.Process(node.pid).cmdline()[0] == node.name
    assert psutil.Process(report.children[1].pid).ppid() == report.pid
    supervisor.kill()
    assert gone([node.pid for node in report.walk()], 1)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("raise_before_ready", "raised ValueError: no weights here"),
        ("killed_before_ready", "was killed by SIGKILL before it was ready"),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_death_while_starting_names_the_process(supervisor, target, expected, depth):
    if depth == 1:
        supervisor.start("evo-one", CHILDREN + target, {})
    else:
        supervisor.start("evo-parent", CHILDREN + "parent_of", {"target": CHILDREN + target, "kwargs": {}})
    with pytest.raises(ProcessFailed, match=expected) as caught:
        supervisor.wait_ready(20)
    assert caught.value.failure.name == ("evo-one" if depth == 1 else "evo-grandchild 0")


def test_kill_of_a_grandchild_is_heard_within_a_second(supervisor, watch):
    supervisor.start("evo-parent", CHILDREN + "parent_of", {"target": CHILDREN + "idle", "kwargs": {}, "count": 2})
    (report,) = supervisor.wait_ready(20)
    killed = report.children[1].pid
    began = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    assert watch.heard.wait(5)
    assert time.monotonic() - began < 1
    assert str(watch.failures[0]) == f"evo-grandchild 1 (pid {killed}) was killed by SIGKILL"
    # The level above ended its other child and left.
    assert gone([node.pid for node in report.walk()], 3)
    assert len(watch.failures) == 1


def test_exit_code_without_a_word_is_a_failure(supervisor, watch):
    supervisor.start("evo-three", CHILDREN + "exit_3", {})
    assert watch.heard.wait(20)
    assert "exited with code 3" in str(watch.failures[0])


def test_the_killed_rank_is_named_not_the_peer_that_lost_it(supervisor, watch):
    when = time.monotonic() + 1.5
    supervisor.start("evo-peer TP0", CHILDREN + "lose_peer_at", {"when": when})
    supervisor.start("evo-peer TP1", CHILDREN + "die_at", {"when": when + 0.03})
    supervisor.wait_ready(20)
    assert watch.heard.wait(5)
    assert "evo-peer TP1" in str(watch.failures[0])
    assert "SIGSEGV" in str(watch.failures[0])


def test_no_start_after_a_failure(supervisor, watch):
    """A launch that is still starting processes when one of them dies must end, not wait."""
    supervisor.start("evo-three", CHILDREN + "exit_3", {})
    assert watch.heard.wait(20)
    supervisor.kill()
    with pytest.raises(ProcessFailed, match="evo-three"):
        supervisor.start("evo-late", CHILDREN + "idle", {})


def test_kill_reports_nothing_and_reaches_a_child_that_is_being_started(supervisor, watch, monkeypatch):
    spawn = spawning.spawn

    def slow_spawn(*arguments):
        time.sleep(0.3)
        return spawn(*arguments)

    supervisor.start("evo-one", CHILDREN + "idle", {})
    supervisor.wait_ready(20)
    monkeypatch.setattr("common.processes.supervisor.spawn", slow_spawn)
    threading.Thread(target=supervisor.start, args=("evo-late", CHILDREN + "idle", {}), daemon=True).start()
    time.sleep(0.1)
    supervisor.kill()
    assert gone([p.pid for p in psutil.Process().children() if "resource_tracker" not in " ".join(p.cmdline())], 2)
    assert not watch.failures


def test_a_child_has_its_environment_and_the_parent_keeps_its_own(supervisor):
    supervisor.start("evo-env", CHILDREN + "report_environment", {}, {"OMP_NUM_THREADS": "7"})
    (report,) = supervisor.wait_ready(20)
    assert report.info["threads"] == "7"
    assert os.environ.get("OMP_NUM_THREADS") != "7"


def test_an_expected_exit_is_no_failure(supervisor, watch):
    supervisor.expect_exit()
    supervisor.start("evo-leaver", CHILDREN + "leave", {})
    supervisor.stop()
    assert not watch.failures


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_children_die_with_the_main_process(kill):
    code = (
        "from common.processes import Supervisor\n"
        "s = Supervisor(print)\n"
        "if __name__ == '__main__':\n"
        f"    s.start('evo-parent', '{CHILDREN}parent_of', {{'target': '{CHILDREN}idle', 'kwargs': {{}}}})\n"
        "    print(*[n.pid for n in s.wait_ready()[0].walk()], flush=True)\n"
        "    import time; time.sleep(60)\n"
    )
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in main.stdout.readline().split()]
    assert len(pids) == 2
    main.send_signal(kill)
    main.wait()
    assert gone(pids, 3)
    main.stdout.close()


# ---------------------------------------------------------------------- replicas, eras, hangs


def start_replicas(supervisor: Supervisor, count: int = 2) -> list[list[int]]:
    """pids of two processes of each replica."""
    for replica in range(count):
        for rank in range(2):
            supervisor.start(f"evo-peer DP{replica} TP{rank}", CHILDREN + "idle", {}, replica=replica)
    pids = [node.pid for node in supervisor.wait_ready(20)]
    return [pids[2 * replica : 2 * replica + 2] for replica in range(count)]


def test_a_replica_is_lost_alone_and_the_last_one_is_not(supervisor, watch):
    lost: list[tuple[int, Failure]] = []
    first, second = start_replicas(supervisor)
    supervisor.tolerate(lambda replica, failure: lost.append((replica, failure)))
    os.kill(first[1], signal.SIGKILL)
    assert gone(first, 2), "the rest of the replica was left"
    assert [(replica, failure.name) for replica, failure in lost] == [(0, "evo-peer DP0 TP1")]
    assert not watch.failures and not gone(second, 0.3)
    os.kill(second[0], signal.SIGKILL)
    assert watch.heard.wait(5)
    assert watch.failures[0].name == "evo-peer DP1 TP0"
    assert len(lost) == 1


def test_without_tolerance_a_replica_takes_all_with_it(supervisor, watch):
    first, _ = start_replicas(supervisor)
    os.kill(first[0], signal.SIGKILL)
    assert watch.heard.wait(5)
    assert watch.failures[0].name == "evo-peer DP0 TP0"


def test_a_failure_that_the_era_did_not_hear(supervisor, watch):
    supervisor.start("evo-killed", CHILDREN + "idle", {})
    supervisor.start("evo-raises", CHILDREN + "fail_when_told", {"when": time.monotonic() + 3})
    killed = supervisor.wait_ready(20)[0].pid
    supervisor.hear_only(lambda failure: failure.severity == 1)
    os.kill(killed, signal.SIGKILL)
    assert gone([killed], 2)
    assert not watch.heard.wait(0.3)
    assert watch.heard.wait(5)
    assert "evo-raises" in str(watch.failures[0]) and "ValueError: as told" in str(watch.failures[0])


def test_a_start_that_makes_no_progress_names_the_process_and_shows_where_it_is(supervisor):
    """The parent waits for its child: the child is named."""
    supervisor.start("evo-parent", CHILDREN + "parent_of", {"target": CHILDREN + "hang_before_ready", "kwargs": {}})
    with pytest.raises(StartFailed) as caught:
        wait_for_start(supervisor, supervisor.board, 1.0)
    first, _, stacks = str(caught.value).partition("\n")
    assert first.startswith("evo-grandchild 0 (pid ") and "hangs while starting: it makes no progress" in first
    assert "hang_before_ready" in stacks and "[evo-parent (pid" in stacks


def test_a_process_that_is_stopped_while_starting(supervisor):
    supervisor.start("evo-well", CHILDREN + "hang_before_ready", {})
    supervisor.start("evo-stopped", CHILDREN + "hang_before_ready", {})
    time.sleep(0.5)
    os.kill(supervisor.board.lines()[1].pid, signal.SIGSTOP)
    with pytest.raises(StartFailed, match=r"^evo-stopped \(pid \d+\) hangs while starting: it is stopped"):
        wait_for_start(supervisor, supervisor.board, 1.0)


def test_a_start_with_progress_takes_as_long_as_it_takes(supervisor):
    supervisor.start("evo-one", CHILDREN + "idle", {})
    assert [report.name for report in wait_for_start(supervisor, supervisor.board, 20.0)] == ["evo-one"]


def test_stacks_of_those_that_can_answer(supervisor):
    for name in ("evo-well", "evo-stopped"):
        supervisor.start(name, CHILDREN + "idle", {})
    supervisor.wait_ready(20)
    lines = supervisor.board.lines()
    os.kill(lines[1].pid, signal.SIGSTOP)
    wait_until = time.monotonic() + 2
    while process_state(lines[1].pid) != "T" and time.monotonic() < wait_until:
        time.sleep(0.01)
    stacks = read_stacks(lines)
    assert f"[evo-well (pid {lines[0].pid})]" in stacks and "in idle" in stacks
    assert "evo-stopped" not in stacks
