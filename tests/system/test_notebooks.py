"""Each notebook runs from its results without an error and draws; (slow) so it does from a measurement of its own."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from experiments.notebooks.shared import MEASURED

FOLDER = Path("experiments/notebooks").resolve()
DATA = Path("tests/data/notebooks").resolve()
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.py"))
ROUND = ["--repeats", "1"]
TINY_COMPARISON = ["--device", "sim", *ROUND, "--rounds", "1", "--output-len", "16", "--constants", "level,era"]
TINY = {
    "1": [*TINY_COMPARISON, "--tp-size", "1,2"],
    "2": [*TINY_COMPARISON, "--tp-size", "2"],
    "3": ["image", *ROUND, "--sizes", "hash,1 KiB,64 KiB"],
    "4": ["scheduling", *ROUND, "--stages", "peer", "--cells", "1+0,16+0,64+0,64+20"],
    "5": ["dispatch", *ROUND, "--systems", "peer:level", "--dp-size", "2", "--requests", "8"],
    "6": ["idle", *ROUND, "--seconds", "0.2"],
}


def execute(cells: nbformat.NotebookNode, timeout: int) -> nbformat.NotebookNode:
    return nbclient.NotebookClient(
        cells, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()


def with_parameters(path: Path, **values: object) -> nbformat.NotebookNode:
    """As papermill does it: in a cell after the one with the defaults."""
    notebook = jupytext.read(path)
    place = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))
    return notebook


def results_of(path: Path) -> Path:
    """What it reads by default; where that is not shipped, a small one of the same format."""
    name = re.search(r'^RESULTS = "(.+)"$', path.read_text(), re.MULTILINE)[1]
    return next(folder / name for folder in (MEASURED, DATA) if (folder / name).exists())


def figures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output.output_type == "stream")


def test_there_are_six() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("123456")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_says_what_it_asks(path: Path) -> None:
    cells = jupytext.read(path).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for words in ("**Question.**", "**Predict first", "MEASURE = True", "What these intervals allow", "## Exercises"):
        assert words in text
    assert 5 <= sum(cell.cell_type == "code" for cell in cells) <= 12


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_from_results(path: Path) -> None:
    results = results_of(path)
    notebook = execute(with_parameters(path, RESULTS=str(results)), timeout=60)
    assert figures(notebook) >= 2
    assert f"from {results}" in printed(notebook)
    assert re.search(r"\[\d+\.\d+, \d+\.\d+[]:]|no interval", printed(notebook))


def test_an_engine_in_a_notebook_needs_no_guard() -> None:
    source = """
from evolution import Engine

with Engine(model_path="tiny", stage="peer", tp_size=2) as engine:
    print(engine.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 5, "ignore_eos": True})["output_ids"])
"""
    notebook = execute(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), timeout=100)
    assert re.fullmatch(r"\[\d+(, \d+){4}\]\n", printed(notebook))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_from_a_fresh_measurement(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    fresh = TINY[path.name[0]]
    notebook = execute(with_parameters(path, MEASURE=True, FRESH=fresh, RESULTS="nothing"), timeout=500)
    assert figures(notebook) >= 2
    assert "-m evolution" in printed(notebook)
    assert not list(tmp_path.glob("evolution-notebook-*"))  # nothing is left behind
