"""Results of benches on a comparison's page: which bounds are told, what a ratio is called, which caption is taken."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest

from evolution.cli import BENCHES
from experiments.intervals import pairwise_ratio
from report.bench_files import TITLES, caption_of, fill, find_benches, read_bench, verdicts_in


def test_a_page_knows_every_bench():
    assert TITLES.keys() >= BENCHES.keys()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ({"holds": True}, []),
        ({"verdict": None, "holds": True}, []),
        ({"verdict": "fails"}, ["fails"]),
        ({"verdict": "fails", "cells": [{"verdict": "holds"}, {"verdict": "fails"}]}, ["holds", "fails"]),
        ({"verdicts": {"a": "holds", "b": "undecided"}, "verdict": "undecided"}, ["holds", "undecided"]),
    ],
)
def test_bounds_are_counted_where_there_are_any(result, found):
    assert verdicts_in(result) == found


def test_every_ratio_of_a_bench_has_a_name_of_its_own_and_stands_in_one_table(tmp_path):
    ratio = pairwise_ratio([1.0], [1.0])
    rows = [{"stage": "peer", "load": load, "s": 0.12345, "ratio": ratio} for load in (0.4, 0.8)]
    (tmp_path / "radix.json").write_text(json.dumps({"bench": "radix", "ratios": rows, "cells": [{"a": 1, "b": 2}]}))
    bench = read_bench(tmp_path / "radix.json")
    fill(bench, tmp_path)
    assert [table.name for table in bench.tables] == ["radix-ratios", "radix-cells"]
    assert [row[0] for row in bench.tables[0].lines] == ["peer load 0.4", "peer load 0.8"]


def test_a_picture_of_a_bench_has_the_caption_that_its_module_gives():
    assert caption_of(types.SimpleNamespace(CAPTION="What it shows.", __doc__="The picture.")) == "What it shows."
    assert caption_of(types.SimpleNamespace(__doc__="The picture of `x`: what it\nshows.\n\nMore.")) == "What it shows."


def test_an_a_a_test_of_another_version_is_one_line(tmp_path):
    (tmp_path / "null.json").write_text('{"bench": "null", "intervals": []}')
    with pytest.raises(ValueError, match="null.json lacks median_half_width, most_half_width, repeats, "):
        read_bench(tmp_path / "null.json")


@pytest.mark.parametrize("claims", [None, [{"number": 1}], "all"])
def test_claims_of_another_version_are_one_line_and_nothing_is_copied(tmp_path, claims):
    result = {"bench": "claims"} if claims is None else {"bench": "claims", "claims": claims}
    (tmp_path / "other.json").write_text(json.dumps(result))
    (tmp_path / "page").mkdir()
    with pytest.raises(ValueError, match="other.json: claims: .*: measure it again with `claims --run`"):
        find_benches(tmp_path / "page", [tmp_path / "other.json"])
    assert not list((tmp_path / "page").iterdir())


def test_what_is_no_file_is_not_read():
    with pytest.raises(ValueError, match="/dev/zero is no file"):
        read_bench(Path("/dev/zero"))
