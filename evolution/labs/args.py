"""The options of `labs`, apart from what it needs to run."""

from __future__ import annotations

import argparse


def add_labs_args(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="without one: list")

    actions.add_parser("list", help="the labs, their hours, tasks and points")

    grade = actions.add_parser("grade", help="run a lab's tests on a solution, and give points")
    grade.add_argument("lab", metavar="LAB", help="its number, 0 to 7, or the name of its folder")
    grade.add_argument("--task", metavar="NAME", help="only this task (1a is enough), with all that pytest prints")
    grade.add_argument("--solution", metavar="DIR", help="the folder with the student's files (default: the lab's own)")
    grade.add_argument("--hidden", metavar="DIR", help="a folder with further tests, copied beside the public ones")
    grade.add_argument("--json", metavar="FILE", help="write the points, and every test's outcome and cost")
    grade.add_argument("--junit", metavar="FILE", help="write the tests' outcomes as JUnit XML")

    release = actions.add_parser("release", help="build the students' tree: no solutions, no hidden tests")
    release.add_argument("--out", metavar="DIR", required=True, help="a folder that is empty, or not there yet")
    release.add_argument("--force", action="store_true", help="replace what an earlier release wrote there")
