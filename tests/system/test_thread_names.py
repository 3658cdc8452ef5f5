"""Threads of an engine have names that the operating system shows, so that its accounts can be told apart."""

from __future__ import annotations

import os

import pytest

from common.os_accounts import thread_accounts
from evolution import Engine


def names(pid: int) -> set[str]:
    return {account.name for account in thread_accounts(pid)}


@pytest.mark.parametrize(
    ("settings", "process", "expected"),
    [
        ({"stage": "peer", "overlap": True}, "evo-peer TP0", {"forward"}),
        (
            {"stage": "rpyc", "tp_size": 2, "constants": "era"},
            "evo-router",
            {"wait for TP0", "wait for TP1", "supervisor"},
        ),
        ({"stage": "rpyc", "dp_size": 2}, "evo-router", {"DP0", "DP1", "supervisor"}),
    ],
)
def test_names(settings: dict, process: str, expected: set[str]) -> None:
    with Engine(device="sim", **settings) as engine:
        engine.generate("Hello", {"max_new_tokens": 2})
        pids = {report.name: report.pid for child in engine.processes for report in child.walk()}
        assert expected <= names(pids[process])
        assert {"receiver", "supervisor"} <= names(os.getpid())
