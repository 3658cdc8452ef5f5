"""`claims --run` with real engines: the cheapest claims, and all of them."""

from __future__ import annotations

import json
import time

import pytest

from evolution.cli import main
from experiments.claims import TRIALS

CHEAPEST = (4, 18, 22, 58)


def run(path, *arguments: str) -> tuple[int, list[dict], float]:
    """Exit status, the rows of the result, seconds."""
    began = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main(["claims", "--run", "--json", str(path), *arguments])
    return ended.value.code, json.loads(path.read_text())["claims"], time.monotonic() - began


def test_four_of_them_come_out(tmp_path, capsys, nothing_left_behind):
    code, rows, _ = run(tmp_path / "claims.json", "--only", *map(str, CHEAPEST))
    assert code == 0, [row["measured"] for row in rows if row["came_out"] != "yes"]
    assert [row["number"] for row in rows] == list(CHEAPEST)
    assert all(bound["samples"] for row in rows for bound in row["bounds"])
    assert capsys.readouterr().out.count("came out   yes") == len(CHEAPEST)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_at_least_twenty_of_all_hold_within_ten_minutes(tmp_path, capsys, nothing_left_behind):
    code, rows, seconds = run(tmp_path / "claims.json")
    print(capsys.readouterr().out)
    assert [row["number"] for row in rows] == list(TRIALS)
    assert sum(row["came_out"] == "yes" for row in rows) >= 20
    assert code == 0, [row["measured"] for row in rows if row["came_out"] == "no" or row["error"]]
    assert seconds < 600
