"""Fault switches: what the text means, and that a fault happens where and when it says."""

from __future__ import annotations

import time

import pytest

from common.args import EngineArgs
from common.faults import Fault, InjectedFault, check_faults, in_worker, parse_faults
from common.messages import pack_ids
from common.processes import Supervisor
from tests.helpers.reference import Reference

TREE = ["main", "evo-detokenizer", "evo-dp-controller", "evo-peer DP0 TP0", "evo-peer DP1 TP0"]


def test_what_the_text_means() -> None:
    text = "DP0 TP1: die at turn 7; TP0: slow 20 ms at turn 3;detokenizer: raise at start; TP0: noise 0.5 at turn 1;"
    assert parse_faults(text) == [
        Fault("DP0 TP1", "die", 7),
        Fault("TP0", "slow", 3, 20.0),
        Fault("detokenizer", "raise", 0),
        Fault("TP0", "noise", 1, 0.5),
    ]
    assert parse_faults(None) == parse_faults("") == []


@pytest.mark.parametrize(
    "text",
    [
        "TP1 die at turn 7",
        "TP1: explode at turn 7",
        "TP1: die",
        "TP1: die at turn 0",
        "TP1: die at turn x",
        "DP1: die at turn 1",
        "TP1: slow 20 at turn 3",
        "TP1: slow at turn 3",
        "TP1: noise 1 ms at turn 3",
        "TP1: die 3 at turn 3",
        "TP1: own clock at start",
        "detokenizer: slow 1 ms at turn 1",
        "TP1: die at turn 7, TP0: die at turn 8",
    ],
)
def test_bad_text_is_one_line_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="--fault .*die at turn 7") as caught:
        parse_faults(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "process", "named"),
    [
        ("TP1", "evo-peer TP1", True),
        ("DP0 TP1", "evo-peer TP1", True),
        ("DP1 TP1", "evo-peer TP1", False),
        ("TP1", "evo-peer DP0 TP1", False),
        ("DP1 TP0", "evo-tp-server DP1 TP0", True),
        ("TP1", "evo-peer TP11", False),
        ("router", "evo-router", True),
        ("router", "evo-router TP0", False),
    ],
)
def test_whom_a_target_names(target: str, process: str, named: bool) -> None:
    assert Fault(target, "die", 1).names(process) == named


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fault": "TP0: die at turn 1"}, "no process 'TP0'; there are detokenizer, dp-controller, peer DP0 TP0"),
        ({"fault": "router: die at turn 1"}, "no process 'router'"),
        ({"fault": "DP0 TP0: noise 1 at turn 1", "device": "sim"}, "no logits"),
        ({"fault": "DP0 TP0: own clock at turn 1", "disable_radix_cache": True}, "radix cache"),
    ],
)
def test_a_fault_that_would_never_happen_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_faults(EngineArgs(**settings), TREE)


def test_a_follower_has_no_clock() -> None:
    args = EngineArgs(fault="TP1: own clock at turn 1", scheduling="rank0")
    with pytest.raises(ValueError, match="TP1 plans nothing"):
        check_faults(args, None)


# ---------------------------------------------------------------------- in a real worker


def reference_with(fault: str | None) -> Reference:
    reference = Reference(model_path="tiny", max_total_tokens=512)
    if fault:
        in_worker(reference.worker, parse_faults(fault))
    return reference


def tokens_with(fault: str | None, params: dict) -> list[int]:
    return reference_with(fault).generate(input_ids=[[1, 2, 3]], sampling_params=[params])[0]


def test_an_exception_at_its_turn() -> None:
    with pytest.raises(InjectedFault, match="TP0: raise at turn 4"):
        tokens_with("TP0: raise at turn 4", {"max_new_tokens": 8})
    assert len(tokens_with("TP0: raise at turn 9", {"max_new_tokens": 8, "ignore_eos": True})) == 8


def test_slow_from_its_turn_on() -> None:
    params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    began = time.monotonic()
    slow = tokens_with("TP0: slow 100 ms at turn 4", params)
    assert time.monotonic() - began >= 0.3
    assert slow == tokens_with(None, params)


def test_noise_changes_what_is_most_likely() -> None:
    params = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
    clean, noisy = tokens_with(None, params), tokens_with("TP0: noise 50 at turn 5", params)
    assert clean[:4] == noisy[:4] and clean != noisy


def test_a_seed_of_its_own() -> None:
    params = {"max_new_tokens": 16, "temperature": 1.0, "ignore_eos": True}
    assert tokens_with("TP0: own seed at turn 2", params) == tokens_with(None, params)  # admitted before
    assert tokens_with("TP0: own seed at turn 1", params) != tokens_with(None, params)


@pytest.mark.parametrize(("fault", "first"), [(None, 1), ("TP0: own clock at turn 3", 3)])
def test_a_clock_set_back_makes_the_newest_the_oldest(fault: str | None, first: int) -> None:
    reference = reference_with(fault)
    for token in (1, 2, 3):
        reference.generate(input_ids=[[token] * 20], sampling_params=[{"max_new_tokens": 1}])
    tree = reference.worker.scheduler.kv.tree
    assert len(tree.evict(20)) == 20
    known = [len(tree.match_prefix(pack_ids([token] * 20))[0]) for token in (1, 2, 3)]
    assert known == [0 if token == first else 20 for token in (1, 2, 3)]


# ---------------------------------------------------------------------- in a process that is no rank


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("counter: die at turn 3", "was killed by SIGKILL"),
        ("counter: abort at turn 3", "was killed by SIGABRT"),
        ("counter: raise at turn 3", "raised InjectedFault: --fault counter: raise at turn 3"),
        ("counter: raise at start", "raised InjectedFault: --fault counter: raise at start"),
    ],
)
def test_a_process_counts_the_messages_it_takes(fault: str, expected: str) -> None:
    failures = []
    supervisor = Supervisor(failures.append)
    args = EngineArgs(fault=fault)
    supervisor.start("evo-counter", "tests.helpers.children:take_messages", {"args": args, "count": 3})
    deadline = time.monotonic() + 20
    while not failures and time.monotonic() < deadline:
        time.sleep(0.02)
    supervisor.kill()
    assert expected in str(failures[0]) or expected in failures[0].traceback
    taken = supervisor.board.lines()[0].taken
    assert taken == (0 if "start" in fault else 3)
