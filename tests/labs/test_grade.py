"""The grader on a lab made for it: what gives points and what does not, whatever a solution does."""

from __future__ import annotations

import os
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from evolution.cli import main
from evolution.labs import catalog
from evolution.labs.catalog import Lab, read_lab
from evolution.labs.grade import RUN_VARIABLE, Grade, grade
from evolution.labs.results import as_json, as_junit, remark, write

TASKS = """
title = "A lab"
hours = 1
timeout = {timeout}
files = ["solution.py"]
task = [{{ name = "9a_first", title = "", points = 60 }}, {{ name = "9b_second", title = "", points = 40 }}]
"""
SKELETON = """
def first():
    raise NotImplementedError("lab9 task 9a: first")


def second():
    raise NotImplementedError("lab9 task 9b: second")
"""
GOOD = "def first():\n    return 1\n\n\ndef second():\n    return 2\n"
TESTS = """
import pytest

from experiments.labs.marks import cost, task

from .solution import first, second


@task("9a_first")
@pytest.mark.timeout(1)
def test_first():
    assert first() == 1
    cost("3 messages")


@task("9b_second")
@pytest.mark.timeout(1)
def test_second():
    cost("before")
    assert second() == 2
    cost("5 messages")


@task("9b_second")
@pytest.mark.timeout(1)
def test_second_again():
    assert second() == 2


def test_the_set_up():
    pass
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path / "lab9_nine")


def make_lab(folder: Path, timeout: float = 60, tests: str = TESTS) -> Lab:
    folder.mkdir()
    (folder / "tasks.toml").write_text(TASKS.format(timeout=timeout))
    (folder / "solution.py").write_text(SKELETON)
    (folder / "test_lab.py").write_text(tests)
    return read_lab(folder)


def with_solution(lab: Lab, text: str, **how: Path) -> Grade:
    folder = lab.folder.parent / "mine"
    folder.mkdir()
    (folder / "solution.py").write_text(text)
    return grade(lab, [folder], **how)


def points(result: Grade) -> list[int]:
    return [task.points for task in result.tasks]


def test_all_points(lab: Lab) -> None:
    result = with_solution(lab, GOOD)
    assert points(result) == [60, 40]
    assert [remark(task) for task in result.tasks] == ["3 messages", "5 messages"]
    assert [test.outcome for test in result.ungraded] == ["passed"]
    assert result.left == () and not result.timed_out


def test_the_skeleton(lab: Lab) -> None:
    result = grade(lab)
    assert points(result) == [0, 0]
    assert [remark(task) for task in result.tasks] == ["not written yet"] * 2
    assert [test.outcome for test in result.ungraded] == ["passed"]


def test_one_test_of_a_task_fails(lab: Lab) -> None:
    result = with_solution(lab, GOOD.replace("return 2", "globals()['n'] = globals().get('n', 1) + 1; return n"))
    assert points(result) == [60, 0]
    assert remark(result.tasks[1]) == "test_second_again: assert 3 == 2"


def test_only_one_task(lab: Lab) -> None:
    result = with_solution(lab, GOOD, task=lab.find_task("9b"))
    assert (points(result), result.possible) == ([40], 40)
    assert "2 passed, 2 deselected" in result.output


def test_a_hang_ends_in_its_timeout(lab: Lab) -> None:
    result = with_solution(lab, GOOD.replace("return 1", "while True: pass"))
    assert points(result) == [0, 40]
    assert result.tasks[0].tests[0].outcome == "timeout"
    assert remark(result.tasks[0]) == "test_first: Timeout (>1.0s)"


@pytest.mark.slow
def test_a_hang_that_no_signal_ends(tmp_path: Path) -> None:
    """The lab's own time ends it. What did not run counts as failed."""
    lab = make_lab(tmp_path / "lab9_nine", timeout=20)
    deaf = "import signal\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    while True: pass"
    result = with_solution(lab, GOOD.replace("return 1", deaf))
    assert points(result) == [0, 0]
    assert result.timed_out
    assert remark(result.tasks[0]) == "test_first: Timeout (>20s of the lab)"
    assert remark(result.tasks[1]) == "test_second: did not run in the lab's 20 s"


def test_a_solution_that_ends_the_process(lab: Lab) -> None:
    result = with_solution(lab, "import os\n" + GOOD.replace("return 1", "os._exit(0)"))
    assert points(result) == [0, 0]
    assert remark(result.tasks[0]) == "test_first: ended pytest's process"
    assert remark(result.tasks[1]) == "test_second: did not run"


def test_a_message_that_no_file_can_hold(lab: Lab, tmp_path: Path) -> None:
    """Halves of characters, and far too many of them."""
    result = with_solution(lab, GOOD.replace("return 1", r"raise ValueError('\udc80' * 10_000)"))
    assert points(result) == [0, 40]
    assert remark(result.tasks[0]).startswith(r"test_first: ValueError: \udc80")
    assert len(remark(result.tasks[0])) < 2000
    write(result, str(tmp_path / "x.json"), str(tmp_path / "x.xml"))
    assert "udc80" in (tmp_path / "x.json").read_text()


def test_a_solution_that_cannot_be_imported(lab: Lab) -> None:
    result = with_solution(lab, "def first(:\n")
    assert points(result) == [0, 0]
    assert "SyntaxError" in remark(result.tasks[0])


@pytest.mark.parametrize("how", ["pytest.skip('no')", "pytest.xfail('no')"])
def test_a_test_that_is_skipped_gives_nothing(lab: Lab, how: str) -> None:
    result = with_solution(lab, "import pytest\n" + GOOD.replace("return 1", how))
    assert points(result) == [0, 40]
    assert remark(result.tasks[0]) == "test_first: skipped: a test that did not run counts as failed"


def test_unwritten_in_another_process(lab: Lab) -> None:
    told = "raise RuntimeError('evo-x TP1 (pid 7) raised NotImplementedError: lab9 task 9a: first')"
    result = with_solution(lab, GOOD.replace("return 1", told))
    assert remark(result.tasks[0]) == "not written yet"


def test_nothing_is_left_behind(lab: Lab) -> None:
    """Not a child, not one in a session of its own whose parent has ended, not one that ignores SIGTERM; and no thread
    keeps the grader waiting."""
    start = """
import subprocess, sys, threading
def first():
    threading.Thread(target=threading.Event().wait).start()
    subprocess.Popen(["sleep", "987"])
    code = "import subprocess; subprocess.Popen(['sleep', '987'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
    return 1
"""
    before = {path.name for path in Path(os.environ["TMPDIR"]).iterdir()}
    began = time.monotonic()
    result = with_solution(lab, start + GOOD[GOOD.index("def second") :])
    assert time.monotonic() - began < 30
    assert points(result) == [60, 40]
    assert result.left == ("sleep", "sleep")
    assert not [process for process in psutil.process_iter() if _is_of_a_run(process)]
    assert {path.name for path in Path(os.environ["TMPDIR"]).iterdir()} == before


def _is_of_a_run(process: psutil.Process) -> bool:
    try:
        environment = process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
        # Of this test, not of a grading elsewhere on the machine.
        return RUN_VARIABLE in environment and environment["TMPDIR"].startswith(os.environ["TMPDIR"])
    except psutil.Error:
        return False


def test_hidden_tests_count(lab: Lab, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "helper.py").write_text("WANTED = 7\n")
    text = TESTS.replace("test_first", "test_more").replace("== 1", "== WANTED")
    (hidden / "test_hidden.py").write_text(
        text.replace("import pytest\n", "import pytest\nfrom .helper import WANTED\n")
    )
    result = with_solution(lab, GOOD, hidden=hidden)
    assert points(result) == [0, 40]
    assert remark(result.tasks[0]) == "test_more: assert 1 == 7"


def test_a_task_without_a_test_gives_nothing(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab9_nine", tests=TESTS[: TESTS.index('@task("9b_second")')])
    result = with_solution(lab, GOOD)
    assert points(result) == [60, 0]
    assert remark(result.tasks[1]) == "no test of it ran"


def test_json_and_junit(lab: Lab) -> None:
    result = with_solution(lab, GOOD.replace("return 2", "return '\\x00'"))
    told = as_json(result)
    assert (told["lab"], told["points"], told["of"]) == ("lab9_nine", 60, 100)
    assert [(task["name"], task["points"], task["of"]) for task in told["tasks"]] == [
        ("9a_first", 60, 60),
        ("9b_second", 0, 40),
    ]
    assert told["tasks"][0]["tests"][0]["cost"] == "3 messages"
    suite = ElementTree.fromstring(ElementTree.tostring(as_junit(result))).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
    assert [case.get("classname") for case in suite.findall("testcase")][:2] == [
        "lab9_nine.9a_first",
        "lab9_nine.9b_second",
    ]


@pytest.fixture
def as_lab_9(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(catalog, "LABS", lab.folder.parent)
    return lab


@pytest.fixture(autouse=True)
def sigterm_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """`main` installs one, in this process."""
    monkeypatch.setattr("signal.signal", lambda *_: None)


BAD = {
    "no lab": (["grade", "8"], "there is no lab '8': choose from lab9_nine"),
    "no task": (["grade", "9", "--task", "9c"], "no task '9c': choose from 9a_first, 9b_second"),
    "no folder": (["grade", "9", "--solution", "/no/such"], "--solution /no/such: not a folder"),
    "nothing in it": (["grade", "9", "--solution", "/usr"], "none of solution.py is there"),
    "no hidden tests": (["grade", "9", "--hidden", "/usr"], "--hidden /usr: no test_*.py is there"),
    "json into nowhere": (["grade", "9", "--json", "/no/such/x.json"], "--json /no/such/x.json: No such file"),
    "junit is a folder": (["grade", "9", "--junit", "/tmp"], "--junit /tmp: Is a directory"),
    "no such action": (["mark", "9"], "ACTION"),
}


@pytest.mark.parametrize(("command", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(
    as_lab_9: Lab, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["labs", *command])
    said = capsys.readouterr()
    assert left.value.code == 2
    assert said.out == ""
    assert message in said.err and said.err.count("\n") == 1


def test_without_an_action_the_labs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = []
    for command in ([], ["list"]):
        with pytest.raises(SystemExit) as left:
            main(["labs", *command])
        assert left.value.code == 0
        listed.append(capsys.readouterr().out)
    assert listed[0] == listed[1] and "The process tree" in listed[0]


def test_the_command(as_lab_9: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "solution.py").write_text(GOOD)
    for solution, status in ((["--solution", str(tmp_path)], 0), ([], 1)):
        with pytest.raises(SystemExit) as left:
            main(["labs", "grade", "9", "--junit", str(tmp_path / "x.xml"), *solution])
        assert left.value.code == status
    said = " ".join(capsys.readouterr().out.split())
    assert "9a_first 60 60 3 messages" in said
    assert "9a_first 0 60 not written yet" in said
    assert ElementTree.parse(tmp_path / "x.xml").getroot().find("testsuite").get("failures") == "3"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("points = 60", "points = 50"), "the points must add up to 100"),
        (("9b_second", "9a_second"), "two tasks begin alike"),
        (("9b_second", "b_second"), "a task's name begins with a number, a letter and an underscore: b_second"),
        (('["solution.py"]', '["other.py"]'), "files: other.py not there"),
        (("timeout = 60", "timeout = 0"), "timeout and hours must be above 0"),
        (("hours = 1", ""), "missing 1 required"),
        (("hours = 1", "hours ="), "Invalid value"),
    ],
)
def test_a_description_that_is_wrong(lab: Lab, change: tuple[str, str], message: str) -> None:
    path = lab.folder / "tasks.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ValueError, match=str(path)) as raised:
        read_lab(lab.folder)
    assert message in str(raised.value)
