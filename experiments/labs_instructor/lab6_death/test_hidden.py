"""The hidden tests of lab 6: other stages, other deaths, other trees."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from common.processes import Failure
from evolution import Engine
from experiments.labs.marks import cost, task

from . import actors, adapters, hidden_actors
from .engines import LONG, SETTINGS, pids_of, two_looks
from .test_lab import MOST_SWITCHES, PATIENCE, Crew, check_prediction, crew, gone, lives, waited

__all__ = ["crew"]

TOLD = {
    ("rpyc", 1, "raises in a turn"): (False, False),
    ("rpyc", 1, "is killed while idle"): (False, False),
    ("rpyc", 2, "raises in a turn"): (True, True),
    ("rpyc", 2, "is killed while idle"): (True, True),
    ("broadcast", 1, "raises in a turn"): (True, False),
    ("broadcast", 1, "is killed while idle"): (False, True),
    ("broadcast", 2, "raises in a turn"): (False, False),
    ("broadcast", 2, "is killed while idle"): (False, False),
    ("peer", 1, "raises in a turn"): (True, True),
    ("peer", 1, "is killed while idle"): (True, True),
    ("peer", 2, "raises in a turn"): (False, False),
    ("peer", 2, "is killed while idle"): (False, False),
}


@task("6a_who_hears")
@pytest.mark.timeout(60)
def test_another_prediction() -> None:
    check_prediction("peer", 1, 0, "is killed while idle")


@task("6a_who_hears")
@pytest.mark.timeout(10)
def test_all_predictions() -> None:
    wrong = [
        (*case, rank)
        for case, told in TOLD.items()
        for rank in (0, 1)
        if adapters.main_hears(case[0], case[1], rank, case[2]) != told[rank]
    ]
    cost(f"{len(wrong)} of {2 * len(TOLD)} predictions wrong")
    assert not wrong


@task("6b_sentinel")
@pytest.mark.timeout(30)
def test_the_first_of_several(crew: Crew) -> None:
    assert adapters.wait_for_death({}, 0.0) is None
    children: dict[str, Any] = {f"evo-{i}": crew.start(actors.sleep) for i in range(3)}
    children["evo-late"] = crew.start(actors.end_after, actors.LONGEST, 0)
    children["evo-soon"] = crew.start(actors.end_after, 1.0, 0)
    found, switches, cores = waited(children, PATIENCE)
    cost(f"{switches} times off the core and {cores:.3f} cores in a wait of 1 s")
    assert found == ("evo-soon", 0)
    assert switches <= MOST_SWITCHES


@task("6b_sentinel")
@pytest.mark.timeout(30)
def test_one_that_is_dead_already(crew: Crew) -> None:
    assert adapters.wait_for_death({}, 0.0) is None
    children = {"evo-a": crew.start(actors.sleep), "evo-b": crew.start(actors.end_after, 0.0, -signal.SIGABRT)}
    assert gone([children["evo-b"].pid])
    found, switches, _ = waited(children, PATIENCE)
    cost(f"{switches} times off the core")
    assert found == ("evo-b", -signal.SIGABRT)


@task("6c_last_words")
@pytest.mark.timeout(10)
@pytest.mark.parametrize(("words", "torn"), [(["x" * 400_000, "end"], True), ([], False)])
def test_more_words(crew: Crew, words: list[Any], torn: bool) -> None:
    """The first are more than a pipe holds: the child cannot die before somebody listens."""
    process, reader = adapters.start_with_ears(actors.spawn.Process, actors.speak, words, torn, 0)
    crew.adopt(process)
    assert adapters.last_words(reader) == words
    cost(f"{len(words)} messages, 1 end of a pipe")


@task("6d_die_with_parent")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("by", [0, -signal.SIGTERM])
def test_a_parent_that_ends_by_itself(crew: Crew, by: int) -> None:
    reader, up = actors.spawn.Pipe(duplex=False)
    release, hold = actors.spawn.Pipe(duplex=False)
    parent = actors.spawn.Process(target=hidden_actors.middle_until_told, args=(up, release, by))
    parent.start()
    crew.adopt(parent)
    child = reader.recv()
    assert isinstance(child, int), child
    crew.pids.append(child)
    assert lives(child)
    hold.send(None)
    assert gone([child])
    cost("1 system call in the child")


@task("6e_launcher")
@pytest.mark.timeout(30)
def test_many_threads_and_one_that_cannot(crew: Crew) -> None:
    launcher = adapters.launcher()
    errors = []

    def ask(index: int) -> None:
        if index == 0:
            try:
                launcher.start(actors.spawn.Process(target=lambda: None))  # spawn cannot pickle it
            except Exception as error:
                errors.append(error)
            return
        reader, up = actors.spawn.Pipe(duplex=False)
        process = actors.spawn.Process(target=actors.bound, args=(up,))
        launcher.start(process)
        crew.adopt(process)
        reader.recv()

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    time.sleep(0.5)
    alive = [process.is_alive() for process in crew.members]
    launcher.close()
    cost(f"{len(alive)} children, 1 thread")
    assert len(errors) == 1, "who asked for what cannot be started must hear of it"
    assert alive == [True] * 3


@task("6f_hang")
@pytest.mark.timeout(90)
def test_a_process_above_the_ranks_and_a_rank_that_sleeps() -> None:
    assert adapters.who_hangs([], [], False) is None
    fault = "TP0: hang at turn 300"  # it sleeps where the other one waits for it
    with Engine(stage="rpyc", watchdog_timeout=0, fault=fault, **SETTINGS) as engine:
        (stream,) = engine.submit(engine.make_requests(input_ids=[[4, 5]], sampling_params=LONG, stream=True)[1])
        next(stream.results())
        router = pids_of(engine)["evo-router"]
        os.kill(router, signal.SIGSTOP)
        time.sleep(0.5)
        said = [adapters.who_hangs(*two_looks(engine, 0.4), True)]
        os.kill(router, signal.SIGCONT)
        while (looks := two_looks(engine, 1.0))[0] != looks[1]:
            pass
        said.append(adapters.who_hangs(*looks, True))
        engine.shutdown(kill=True)
    cost("4 looks at the board")
    assert said == ["evo-router", "evo-rpyc TP0"]


@task("6g_first_cause")
@pytest.mark.timeout(30)
def test_of_two_exceptions_the_first(crew: Crew) -> None:
    raised = Failure("evo-rank", 0, "raised ValueError: no weights here", 1, 0.0)
    children = {
        "evo-late": crew.start_with_status(actors.report, raised, 3.0, 1),
        "evo-first": crew.start_with_status(actors.report, raised, 0.5, 1),
        "evo-code": crew.start_with_status(actors.report, None, 0.0, 3),
    }
    cause = adapters.first_cause(children, window=8.0)
    cost(f"a window of 8 s; {cause}")
    assert (cause.pid, cause.severity) == (children["evo-first"][0].pid, 1)


@task("6g_first_cause")
@pytest.mark.timeout(30)
def test_an_exit_code_without_a_word(crew: Crew) -> None:
    children = {
        "evo-code": crew.start_with_status(actors.report, None, 0.2, 3),
        "evo-other": crew.start_with_status(actors.report, None, actors.LONGEST, 0),
    }
    cause = adapters.first_cause(children, window=0.5)
    cost(f"a window of 0.5 s; {cause}")
    assert (cause.name, cause.cause, cause.severity) == ("evo-code", "exited with code 3", 3)


@task("6h_end_all")
@pytest.mark.timeout(40)
def test_two_trees_and_one_dead(crew: Crew) -> None:
    adapters.end_all([])
    reader, up = actors.spawn.Pipe(duplex=False)
    roots = [actors.spawn.Process(target=actors.tree, args=(up, depth, 1, True)) for depth in (3, 1)]
    for root in roots:
        root.start()
        crew.adopt(root)
    crew.pids += [reader.recv() for _ in range(4 + 2)]
    dead = crew.start(actors.end_after, 0.0, 0)
    assert gone([dead.pid])
    adapters.end_all([dead, *roots])
    left = [pid for pid in crew.pids if lives(pid)]
    cost(f"{len(crew.pids)} processes, {len(left)} left")
    assert not left
    assert [root.exitcode for root in roots] == [-signal.SIGKILL] * 2
