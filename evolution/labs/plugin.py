"""In pytest's own process: say which tests there are, and how each ended, one JSON object a line.

The lines are written as things happen, so what is there when the process is killed is true.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

COST = "cost: "
LONGEST = 300  # characters of a line that is shown


@dataclass
class TestRecord:
    """How a test ended: passed, failed, skipped, unwritten (NotImplementedError), timeout; "" as long as it runs.
    `message`: the first line of the failure. `limit`: its timeout in s, 0 if it has none. `task`: "" if ungraded."""

    __test__ = False

    name: str
    task: str
    limit: float = 0.0
    outcome: str = ""
    seconds: float = 0.0
    cost: str = ""
    message: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lab-results", required=True, help="the file for what this plugin says")
    parser.addoption("--lab-task", default=None, help="only the tests of this task")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "task(name): the task of a lab that this test is a part of")
    config.pluginmanager.register(Reporter(config))


class Reporter:
    def __init__(self, config: pytest.Config) -> None:
        self.path = Path(config.getoption("--lab-results"))
        self.only = config.getoption("--lab-task")
        self.current: TestRecord

    def say(self, kind: str, content: Any) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode({"kind": kind, "content": content}) + b"\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            said = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self.say("broken", said[-1] if said else report.longreprtext.strip().splitlines()[-1])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.only:
            others = [item for item in items if _task_of(item) != self.only]
            items[:] = [item for item in items if _task_of(item) == self.only]
            config.hook.pytest_deselected(items=others)
        self.say("collected", [dataclasses.asdict(_record(item)) for item in items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say("begins", nodeid.rpartition("/")[2])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.current = _record(item)
        outcome = yield
        self.current.outcome = self.current.outcome or "failed"  # no phase of it came to an end
        self.say("ended", dataclasses.asdict(self.current))
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Any:
        report = yield
        record = self.current
        record.seconds += report.duration
        if report.when == "call":
            lines = report.capstdout.splitlines()
            record.cost = next((plain(line.removeprefix(COST)) for line in lines[::-1] if line.startswith(COST)), "")
        if report.passed and report.when == "call":
            record.outcome = record.outcome or "passed"
        elif not report.passed and record.outcome in ("", "passed"):
            record.outcome, record.message = _what_failed(report, call)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Leave at once: a thread that a test left waiting would keep the process for ever."""
        self.say("finished", None)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _record(item: pytest.Item) -> TestRecord:
    limit = item.get_closest_marker("timeout")
    return TestRecord(item.nodeid.rpartition("/")[2], _task_of(item), float(limit.args[0]) if limit else 0.0)


def _task_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("task")
    return mark.args[0] if mark else ""


def _what_failed(report: pytest.TestReport, call: pytest.CallInfo) -> tuple[str, str]:
    """The outcome, and the first line of what to say of it."""
    if report.skipped or call.excinfo is None:
        return "skipped", "skipped: a test that did not run counts as failed"
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else str(call.excinfo.value)).strip() or call.excinfo.typename
    if "Timeout (>" in text and call.excinfo.typename == "Failed":
        return "timeout", plain(text.splitlines()[0]).removeprefix("Failed: ").replace(" from pytest-timeout.", "")
    if _is_unwritten(call.excinfo.value) or "NotImplementedError: lab" in text:
        return "unwritten", "not written yet"
    return "failed", plain(text.splitlines()[0])


def plain(text: str) -> str:
    """For a cell of a table, and for JSON, whatever a test prints: not too long, and no halves of characters."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return cut.encode(errors="backslashreplace").decode()


def _is_unwritten(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, NotImplementedError):
            return True
        error = error.__cause__ or error.__context__
    return False
