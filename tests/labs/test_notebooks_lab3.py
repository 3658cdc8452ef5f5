"""The notebook of lab 3 runs and draws: on the skeleton, whose encoding is not written, and on the reference."""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from evolution.labs.catalog import find_lab
from evolution.labs.grade import copy_lab
from tests.labs.shared import instructor

LAB = find_lab("3")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("written", [False, True])
def test_it_draws_time_against_size(written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlays = [instructor(LAB) / "reference"] if written else []
    copy_lab(LAB, tmp_path / LAB.name, overlays, hidden=None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    notebook = jupytext.read(tmp_path / LAB.name / "notebook.py")
    place = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    parameters = f"LAB, SIZES, REPEATS = {LAB.name!r}, [1024, 1 << 20], 3"
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert ("your encoding is not written yet" in printed) != written
    assert ("list of ints over yours" in printed) == written
    assert printed.count("list of ints over msgpack") == 2
