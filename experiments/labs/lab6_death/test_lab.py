"""The public tests of lab 6. `python -m evolution labs grade 6` runs them; each prints what it cost."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest

from common.processes import Failure
from evolution import Engine
from experiments.labs.marks import cost, task

from . import actors, adapters
from .engines import LONG, SETTINGS, main_was_told, pids_of, two_looks

PATIENCE = 10.0  # s; what must happen happens within milliseconds on a machine that has nothing else to do
# A wait that blocks gives the core away once or twice. One that looks every 100 ms does so 10 times in 1 s.
MOST_SWITCHES = 8
MOST_OF_A_CORE = 0.2  # while it waits: a wait that blocks takes 0.001, one that spins nearly 1


class Crew:
    """The processes of a test, which end with it."""

    def __init__(self) -> None:
        self.members: list[BaseProcess] = []
        self.pids: list[int] = []

    def start(self, target: Callable[..., None], *args: Any) -> BaseProcess:
        """Returns when it says that it is up."""
        reader, up = actors.spawn.Pipe(duplex=False)
        process = actors.spawn.Process(target=target, args=(up, *args))
        process.start()
        self.adopt(process)
        up.close()
        reader.recv()
        return process

    def start_with_status(self, target: Callable[..., None], *args: Any) -> tuple[BaseProcess, Connection]:
        """One that may say a Failure: with the pipe for it."""
        status, writer = actors.spawn.Pipe(duplex=False)
        reader, up = actors.spawn.Pipe(duplex=False)
        process = actors.spawn.Process(target=target, args=(writer, up, *args))
        process.start()
        self.adopt(process)
        writer.close()
        up.close()
        reader.recv()
        return process, status

    def adopt(self, process: BaseProcess) -> None:
        self.members.append(process)

    def end(self) -> None:
        for process in self.members:
            if process.is_alive():
                process.kill()
        for process in self.members:
            process.join(PATIENCE)
        for pid in self.pids:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.end()


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int], within: float = PATIENCE) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(lives(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


# ---------------------------------------------------------------------- 6a


def check_prediction(stage: str, dp_size: int, rank: int, how: str) -> None:
    predicted = adapters.main_hears(stage, dp_size, rank, how)
    told, said = main_was_told(stage, dp_size, rank, how)
    cost(f"one engine; {stage}, rank {rank} {how}: {'told' if told else 'not told'}: {said[:60]}")
    assert predicted == told


@task("6a_who_hears")
@pytest.mark.timeout(60)
def test_what_you_predict_is_what_happens() -> None:
    check_prediction("broadcast", 1, 1, "raises in a turn")


# ---------------------------------------------------------------------- 6b


def waited(children: dict[str, BaseProcess], timeout: float) -> tuple[tuple[str, int] | None, int, float]:
    """What the wait said, how often the thread gave its core away, and the share of a core that it took."""
    before, cpu, began = resource.getrusage(resource.RUSAGE_THREAD), time.thread_time(), time.monotonic()
    found = adapters.wait_for_death(children, timeout)
    took, cpu = time.monotonic() - began, time.thread_time() - cpu
    return found, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before.ru_nvcsw, cpu / max(took, 0.1)


@task("6b_sentinel")
@pytest.mark.timeout(30)
def test_a_death_is_heard_by_who_sleeps(crew: Crew) -> None:
    assert adapters.wait_for_death({}, 0.0) is None
    children = {"evo-a": crew.start(actors.sleep), "evo-b": crew.start(actors.end_after, 1.5, -signal.SIGKILL)}
    found, switches, cores = waited(children, PATIENCE)
    cost(f"{switches} times off the core and {cores:.3f} cores in a wait of 1.5 s")
    assert found == ("evo-b", -signal.SIGKILL)
    assert switches <= MOST_SWITCHES
    assert cores <= MOST_OF_A_CORE


@task("6b_sentinel")
@pytest.mark.timeout(30)
def test_nobody_dies(crew: Crew) -> None:
    assert adapters.wait_for_death({}, 0.0) is None
    found, switches, cores = waited({"evo-a": crew.start(actors.sleep)}, 1.0)
    cost(f"{switches} times off the core and {cores:.3f} cores in a wait of 1 s")
    assert found is None
    assert switches <= MOST_SWITCHES
    assert cores <= MOST_OF_A_CORE


# ---------------------------------------------------------------------- 6c


@task("6c_last_words")
@pytest.mark.timeout(10)
@pytest.mark.parametrize(("words", "torn"), [(["ready", {"step": 1}, "good-bye"], False), ([1, 2, 3], True)])
def test_what_was_said_before_the_death(crew: Crew, words: list[Any], torn: bool) -> None:
    process, reader = adapters.start_with_ears(actors.spawn.Process, actors.speak, words, torn, -signal.SIGKILL)
    crew.adopt(process)
    assert adapters.last_words(reader) == words
    cost(f"{len(words)} messages, 1 end of a pipe")


# ---------------------------------------------------------------------- 6d, 6e


@task("6d_die_with_parent")
@pytest.mark.timeout(30)
def test_a_child_dies_with_its_parent(crew: Crew) -> None:
    reader, up = actors.spawn.Pipe(duplex=False)
    parent = actors.spawn.Process(target=actors.middle, args=(up, False))
    parent.start()
    crew.adopt(parent)
    child = reader.recv()
    assert isinstance(child, int), child
    crew.pids.append(child)
    assert lives(child)
    parent.kill()
    assert gone([child]), "the child lives on without its parent"
    cost("1 system call in the child")


@task("6d_die_with_parent")
@pytest.mark.timeout(30)
def test_a_parent_that_is_gone_already(crew: Crew) -> None:
    """PR_SET_PDEATHSIG says nothing of a death that was before it."""
    reader, up = actors.spawn.Pipe(duplex=False)
    parent = actors.spawn.Process(target=actors.middle, args=(up, True))
    parent.start()
    crew.adopt(parent)
    child = reader.recv()
    crew.pids.append(child)
    up.close()
    parent.kill()
    parent.join()
    try:
        said = reader.recv()
    except EOFError:  # it has ended
        said = ""
    assert not said, f"the child asked when its parent was gone already, and {said}"
    assert gone([child])
    cost("2 system calls in the child")


@task("6e_launcher")
@pytest.mark.timeout(30)
def test_children_outlive_the_thread_that_asked_for_them(crew: Crew) -> None:
    launcher = adapters.launcher()
    readers = []

    def ask() -> None:
        reader, up = actors.spawn.Pipe(duplex=False)
        process = actors.spawn.Process(target=actors.bound, args=(up,))
        launcher.start(process)
        crew.adopt(process)
        up.close()
        readers.append(reader)
        reader.recv()  # its PDEATHSIG is set

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    time.sleep(0.5)  # the signal comes while the thread ends: long before that
    alive = [process.is_alive() for process in crew.members]
    launcher.close()
    assert alive == [True, True], "a child died with the thread that started it"
    cost("2 children, 1 thread")


# ---------------------------------------------------------------------- 6f


@task("6f_hang")
@pytest.mark.timeout(60)
def test_who_holds_an_engine_up() -> None:
    assert adapters.who_hangs([], [], False) is None
    with Engine(stage="peer", watchdog_timeout=0, **SETTINGS) as engine:
        idle = two_looks(engine, 0.5)
        (stream,) = engine.submit(engine.make_requests(input_ids=[[1, 2, 3]], sampling_params=LONG, stream=True)[1])
        next(stream.results())
        working = two_looks(engine, 0.5)
        os.kill(pids_of(engine)["evo-peer TP1"], signal.SIGSTOP)
        time.sleep(0.5)  # the other one goes on until it meets TP1
        stopped = two_looks(engine, 0.5)
        said = adapters.who_hangs(*idle, False), adapters.who_hangs(*working, True), adapters.who_hangs(*stopped, True)
        engine.shutdown(kill=True)
    cost("6 looks at the board, none of which the engine noticed")
    assert said == (None, None, "evo-peer TP1")


# ---------------------------------------------------------------------- 6g


@task("6g_first_cause")
@pytest.mark.timeout(30)
def test_the_killed_one_is_named_and_not_its_peer(crew: Crew) -> None:
    """The peer loses its connection at once, and says so; what was killed says nothing."""
    ends = actors.spawn.Pipe()
    children = {f"evo-rank {i}": crew.start_with_status(actors.rank, end) for i, end in enumerate(ends)}
    for end in ends:
        end.close()
    children["evo-other"] = crew.start_with_status(actors.report, None, actors.LONGEST, 0)
    victim = children["evo-rank 1"][0]
    victim.kill()
    cause = adapters.first_cause(children, window=1.0)
    cost(f"a window of 1 s; {cause}")
    assert (cause.name, cause.pid, cause.cause) == ("evo-rank 1", victim.pid, "was killed by SIGKILL")


@task("6g_first_cause")
@pytest.mark.timeout(30)
def test_the_cause_may_be_seen_last(crew: Crew) -> None:
    lost = Failure("evo-rank 0", 0, "raised PeerLost: the other one is gone", 2, 0.0)
    children = {
        "evo-rank 0": crew.start_with_status(actors.report, lost, 1.0, 1),
        "evo-rank 1": crew.start_with_status(actors.report, None, 1.0, -signal.SIGSEGV),
    }
    # The second was started later, and so ends later, by what a start takes: well within the window.
    cause = adapters.first_cause(children, window=5.0)
    cost(f"a window of 5 s; {cause}")
    assert (cause.name, cause.cause) == ("evo-rank 1", "was killed by SIGSEGV")


# ---------------------------------------------------------------------- 6h


@task("6h_end_all")
@pytest.mark.timeout(40)
@pytest.mark.parametrize("respawns", [False, True])
def test_nobody_is_left(crew: Crew, respawns: bool) -> None:
    adapters.end_all([])
    bystander = crew.start(actors.sleep)
    reader, up = actors.spawn.Pipe(duplex=False)
    root = actors.spawn.Process(target=actors.tree, args=(up, 2, 2, respawns))
    root.start()
    crew.adopt(root)
    up.close()
    crew.pids += [reader.recv() for _ in range(1 + 2 + 4)]
    adapters.end_all([root])
    left = [pid for pid in crew.pids if lives(pid)]
    time.sleep(0.3)
    while reader.poll():  # whoever was started anew says so
        try:
            crew.pids.append(reader.recv())
        except EOFError:
            break
    cost(f"{len(crew.pids)} processes, {len(left)} left")
    assert not left
    assert not any(lives(pid) for pid in crew.pids), "somebody was started anew, and lives"
    assert root.exitcode is not None, "a zombie is left"
    assert bystander.is_alive(), "a process of somebody else was killed"
