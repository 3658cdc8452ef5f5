"""A grade as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evolution.labs.grade import Grade, TaskGrade
from evolution.labs.plugin import TestRecord


def show(grade: Grade, console: Console) -> None:
    """Each task with its points, and what its tests cost; or the first thing that went wrong with it."""
    table = Table("task", "points", "of", "", box=None, pad_edge=False)
    for column in table.columns[1:3]:
        column.justify = "right"
    for task in grade.tasks:
        table.add_row(task.task.name, str(task.points), str(task.task.points), escape(remark(task)))
    table.add_section()
    table.add_row("total", str(grade.points), str(grade.possible), f"{grade.seconds:.0f} s")
    console.print(f"lab {grade.lab.number}: {grade.lab.title}")
    console.print(table)
    for test in grade.ungraded:
        if test.outcome != "passed":
            console.print(escape(f"not graded, but it should pass: {test.name}: {test.message}"))
    if grade.timed_out:
        console.print(f"The lab's time of {grade.lab.timeout:g} s was over; all of its processes were killed.")


def remark(grade: TaskGrade) -> str:
    """Of a task with its points the costs, a line for each test that says one; else the first failure."""
    if grade.points:
        return "\n".join(test.cost for test in grade.tests if test.cost)
    failed = [test for test in grade.tests if test.outcome != "passed"]
    if not failed:
        return grade.message
    first = failed[0]
    if grade.message or first.outcome == "unwritten":
        return grade.message or first.message
    return f"{first.name.partition('::')[2]}: {first.message}"


def as_json(grade: Grade) -> dict[str, Any]:
    return {
        "lab": grade.lab.name,
        "title": grade.lab.title,
        "points": grade.points,
        "of": grade.possible,
        "seconds": round(grade.seconds, 3),
        "timed_out": grade.timed_out,
        "left_behind": list(grade.left),
        "tasks": [
            {
                "name": task.task.name,
                "title": task.task.title,
                "points": task.points,
                "of": task.task.points,
                "message": "" if task.points else remark(task),
                "tests": [_test(test) for test in task.tests],
            }
            for task in grade.tasks
        ],
        "ungraded": [_test(test) for test in grade.ungraded],
    }


def _test(test: TestRecord) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(test).items() if key != "task"}


def as_junit(grade: Grade) -> ElementTree.Element:
    """One test suite; a case's class is its task."""
    tests = [*(test for task in grade.tasks for test in task.tests), *grade.ungraded]
    failures = [test for test in tests if test.outcome != "passed"]
    suite = ElementTree.Element(
        "testsuite",
        name=grade.lab.name,
        tests=str(len(tests)),
        failures=str(len(failures)),
        errors="0",
        skipped="0",
        time=f"{grade.seconds:.3f}",
    )
    for test in tests:
        _, _, name = test.name.partition("::")
        place = {"classname": f"{grade.lab.name}.{test.task or 'ungraded'}", "name": name}
        case = ElementTree.SubElement(suite, "testcase", **place, time=f"{test.seconds:.3f}")
        if test.outcome != "passed":
            ElementTree.SubElement(case, "failure", type=test.outcome, message=_for_xml(test.message))
        if test.cost:
            ElementTree.SubElement(case, "system-out").text = _for_xml(test.cost)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    return suites


def _for_xml(text: str) -> str:
    """XML cannot hold control characters, whatever a failing test prints."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def write(grade: Grade, json: str | None, junit: str | None) -> None:
    if json:
        Path(json).write_bytes(msgspec.json.format(msgspec.json.encode(as_json(grade))) + b"\n")
    if junit:
        tree = ElementTree.ElementTree(as_junit(grade))
        ElementTree.indent(tree)
        tree.write(junit, encoding="utf-8", xml_declaration=True)
