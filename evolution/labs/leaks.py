"""What students must not get: lines of references and of hidden tests; and where such a line stands in a tree.

Of a reference every line of code counts that its skeleton does not give; of hidden tests every one, and their
functions' names. Not those that the lab's tests and what they import have. Nor lines under 24 characters, imports,
decorators, headers, comments, docstrings, and what the engine's own code has too, which students read anyway.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from evolution.labs.catalog import Lab

SHORTEST = 24
HEADERS = ("#", "@", "import ", "from ", "def ", "async def ", "class ", '"""')
TEXTS = {".py", ".md", ".toml", ".txt", ".json", ".j2", ""}
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def secrets(lab: Lab, instructor: Path, known: set[str]) -> dict[str, str]:
    """What must not be given away, with the file that it is from. instructor: the lab's folder there. known: lines of
    the engine's own code."""
    found = {}
    given = [path for path in lab.folder.glob("*.py") if path.name not in lab.files and "notebook" not in path.name]
    public = {line for path in given for line in code_lines(path)}
    for name in lab.files:
        path = instructor / "reference" / name
        for line in reference_lines(path, lab.folder / name) - public - known:
            found[line] = str(path)
    for path in instructor.glob("*.py"):
        for line in code_lines(path) - public - known:
            found[line] = str(path)
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE):
            found[f"def {name}("] = str(path)
    return found


def reference_lines(reference: Path, skeleton: Path) -> set[str]:
    if reference.suffix != ".py":
        return code_lines(reference) - code_lines(skeleton)
    given = {name: node for name, node in _functions(skeleton) if not _is_unwritten(node)}
    written = [node for name, node in _functions(reference) if name in given]
    inside = {number for node in written for number in range(node.lineno, node.end_lineno + 1)}
    unwritten = [node for _, node in _functions(skeleton) if _is_unwritten(node)]
    return code_lines(reference, without=inside) - code_lines(skeleton, without=_lines_of(unwritten))


def code_lines(path: Path, without: set[int] = frozenset()) -> set[str]:
    """Stripped, and without what does not count. without: numbers of lines to be left out."""
    text = path.read_text()
    if path.suffix != ".py":
        return {line.strip() for line in text.splitlines() if len(line.strip()) >= SHORTEST}
    skipped = without | set(_docstring_lines(ast.parse(text)))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return {
        line
        for number, line in lines
        if number not in skipped and len(line) >= SHORTEST and not line.startswith(HEADERS)
    }


def _functions(path: Path) -> Iterator[tuple[str, Functions]]:
    """Of a module and of its classes, by `Class.name`."""

    def below(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Functions]]:
        for node in body:
            if isinstance(node, Functions):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from below(node.body, f"{prefix}{node.name}.")

    yield from below(ast.parse(path.read_text()).body, "")


def _is_unwritten(function: Functions) -> bool:
    raised = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc]
    return any("NotImplementedError" in ast.unparse(error) for error in raised)


def _lines_of(nodes: Iterable[Functions]) -> set[int]:
    return {number for node in nodes for number in range(node.lineno, node.end_lineno + 1)}


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Functions) and ast.get_docstring(node) is not None:
            yield from range(node.body[0].lineno, node.body[0].end_lineno + 1)


def text_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in TEXTS and "__pycache__" not in path.parts:
            yield path


def known_lines(tree: Path, labs: Path) -> set[str]:
    """Lines of all Python files of a tree but those below `labs`."""
    paths = [path for path in text_files(tree) if path.suffix == ".py" and not path.is_relative_to(labs)]
    return {line.strip() for path in paths for line in path.read_text().splitlines()}


def leaks(tree: Path, places: Iterable[Path], hidden: dict[str, str], instructor: Path) -> list[str]:
    """One line for each thing found: a file of the instructor's, anywhere in the tree; a line of one in `places`."""
    found = []
    folders = [path for path in instructor.glob("lab*") if path.is_dir()]
    theirs = {path.read_bytes(): path for one in folders for path in text_files(one) if path.stat().st_size}
    for path in text_files(tree):
        if path.read_bytes() in theirs:
            found.append(f"{path.relative_to(tree)} is {theirs[path.read_bytes()].relative_to(instructor)}")
    for path in places:
        text = path.read_text(errors="replace")
        found += [
            f"{path.relative_to(tree)} holds a line of {Path(source).relative_to(instructor)}: {line}"
            for line, source in hidden.items()
            if line in text
        ]
    return found


def written_tasks(lab: Lab) -> list[str]:
    """Tasks that the skeleton does not leave open."""
    text = "".join((lab.folder / name).read_text() for name in lab.files)
    open_ones = " ".join(re.findall(rf'NotImplementedError\("lab{lab.number} ([^"]+)"', text))
    return [task.name for task in lab.tasks if f"task {task.short}" not in open_ones]
