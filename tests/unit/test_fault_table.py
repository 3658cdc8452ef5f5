"""What a row of the fault table is called."""

from __future__ import annotations

import pytest

from experiments.faults.table import Case, Row

KILL = Case("peer", 2, 1, "kill", "evo-peer TP1", "decode")
NAMED = "evo-peer TP1 (pid 7) died"


@pytest.mark.parametrize(
    ("noticed", "saw", "healthy", "orphans", "verdict"),
    [
        (0.2, NAMED, False, 0, "right"),
        (1.2, NAMED, False, 0, "told after more than 1 s"),
        (0.2, "evo-peer TP0 (pid 6) died", False, 0, "another process is named"),
        (0.2, NAMED, True, 0, "the engine says that it is well"),
        (0.2, NAMED, False, 2, "2 processes left after 3 s"),
        (1.2, NAMED, False, 1, "told after more than 1 s; 1 processes left after 3 s"),
        (None, "", False, 0, "nobody was told"),
        (None, "the engine could not start: no memory", False, 0, "not measured"),
    ],
)
def test_a_row_is_right_or_says_what_is_wrong(noticed, saw, healthy, orphans, verdict):
    assert Row(KILL, noticed, saw, healthy, orphans).verdict == verdict
