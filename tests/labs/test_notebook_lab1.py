"""The notebook of lab 1 runs and draws: on the skeleton, of which nothing is drawn, and on the reference."""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from evolution.labs.catalog import find_lab
from evolution.labs.grade import copy_lab
from tests.labs.shared import instructor

LAB = find_lab("1")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("written", [False, True])
def test_it_draws(written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_lab(LAB, tmp_path / LAB.name, [instructor(LAB) / "reference"] if written else [], hidden=None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    notebook = jupytext.read(tmp_path / LAB.name / "notebook.py")
    place = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    parameters = f"LAB, SIZES, RANKS = {LAB.name!r}, [1_000, 70_000], [1, 2]"
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert "rpyc's channel, 70,000 bytes:" in printed
    assert ("not drawn until task 1c is written" in printed) != written
    assert ("70,000 bytes: rpyc's channel over whole frames" in printed) == written
