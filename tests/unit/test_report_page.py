"""The page of a comparison: whole, self-contained, true to what is there, and not stopped by what is not."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from common import tracing
from evolution.cli import main
from experiments.compare.records import PLAN, RUNS
from experiments.intervals import pairwise_ratio
from report.page import write_report
from report.pictures import style
from tests.helpers import comparison
from tests.helpers.comparison import arm
from tests.helpers.html import Reader, broken_links

ARMS = [arm("rpyc"), arm("broadcast"), arm("peer"), arm("broadcast", "era"), arm("peer", "era")]
NOTES = "# Why\n\nIt *is* so, see [there](https://example.org/).\n\n- <b>one</b>\n\n![x](http://example.org/x.png)\n"


def whole(folder: Path) -> Path:
    """A comparison with benches, notes and a trace beside it."""
    scales = {of: 1 + 0.2 * place for place, of in enumerate(ARMS)}
    runs = [comparison.run(of, repeat, scales[of] + 0.01 * repeat) for repeat in range(3) for of in ARMS]
    comparison.write(folder, comparison.plan(ARMS, 3), runs)
    ratio = pairwise_ratio([1.0, 1.1, 1.2], [1.0, 1.0, 1.0])
    alike = [{"arm": "peer", "metric": "TPOT", **ratio}]
    null = {"bench": "null", "intervals": alike, "share_that_holds_1": 1.0, "median_half_width": 0.1,
            "most_half_width": 0.03, "holds": False}  # fmt: skip
    made = {"bench": "made", "unit": "<us>", "ratios": {"a <b>": ratio}, "rows": [{"stage": "peer", "cores": 0.5}]}
    for result in (null, made):
        (folder / f"{result['bench']}.json").write_text(json.dumps(result))
    (folder / "other.json").write_text('{"no": "bench"}')
    (folder / "notes.md").write_text(NOTES)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = whole(tmp_path_factory.mktemp("report") / "a b")
    made = write_report(folder, [])
    assert all(path.stat().st_size > 0 for path in made)
    return made[0]


def test_it_is_well_formed_and_every_link_leads_somewhere(page):
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.faults == []
    assert broken_links(page, reader) == []


def test_it_needs_no_network_and_runs_no_script(page):
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert re.findall(r'(?:src|@import|url\()\s*=?\s*"?(?!data:|#)(https?:[^"]*)', text) == []
    outside = {link for link in Reader(text).links if link.startswith("http")}
    assert outside == {"https://example.org/", "http://example.org/x.png"}  # the note's own, to be followed
    assert "<img" not in text


def test_every_picture_is_there_twice_and_stands_in_the_page(page):
    pictures = page.parent / "pictures"
    names = {path.stem for path in pictures.iterdir()}
    assert {f"{name}.{kind}" for name in names for kind in ("png", "svg")} == {path.name for path in pictures.iterdir()}
    for expected in ("processes-", "turn-", "parts-", "latency-", "cost-by-size", "cpu-by-process", "ratios-",
                     "bench-null", "bench-made"):  # fmt: skip
        assert any(name.startswith(expected) for name in names), expected
    reader = Reader(page.read_text(encoding="utf-8"))
    assert names <= reader.ids
    assert reader.images == len(names)


def test_tables_are_there_as_csv_and_as_markdown(page):
    tables = page.parent / "tables"
    names = {path.stem for path in tables.iterdir()}
    assert {"counts", "times", "ratios-stages", "ratios-era", "turn-parts", "processes"} <= names
    with (tables / "ratios-stages.csv").open() as file:
        rows = list(csv.DictReader(file))
    (tpot,) = [row for row in rows if row["metric"] == "TPOT" and (row["stage"], row["constants"]) == ("rpyc", "level")]
    assert (tpot["over"], tpot["pairs"]) == ("peer level replicated TP 2 DP 1", "3")
    assert float(tpot["median"]) == pytest.approx(1.01 / 1.41, abs=1e-4)
    assert "| TPOT | 0.72 [0.71, 0.72] |" in (tables / "ratios-stages.md").read_text()


def test_what_came_from_files_is_escaped(page):
    text = page.read_text(encoding="utf-8")
    assert "A &lt;fast&gt; &amp; small CPU" in text
    assert "compare --out &lt;here&gt; &amp; there" in text
    assert "&lt;b&gt;one&lt;/b&gt;" in text
    assert "a &lt;b&gt;" in text
    for raw in ("<fast>", "<here>", "<b>one", "a <b>"):
        assert raw not in text


def test_it_says_what_is_there(page):
    text = Reader(page.read_text(encoding="utf-8")).text
    assert "level: rpyc 0.72 times peer's [0.71, 0.72] at TP 2 DP 1." in text
    assert "Of 1 intervals between arms that are alike 100% hold 1" in text
    assert "It is so, see there ." in text
    assert "3 runs of each arm" in text
    assert "15 runs" in text


def test_the_same_results_give_the_same_files(page, tmp_path):
    again = write_report(whole(tmp_path / "again"), [])
    for path in again:
        assert path.read_bytes() == (page.parent / path.relative_to(tmp_path / "again")).read_bytes(), path


def test_one_run_of_one_arm_is_enough(tmp_path):
    folder = comparison.write(tmp_path, comparison.plan([arm("peer")], 1), [comparison.run(arm("peer"), 0)])
    page = write_report(folder, [])[0]
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.faults == broken_links(page, reader) == []
    assert "Some arms ran once: their intervals are a point" in reader.text
    assert "no two arms here that could be set in a ratio" in reader.text


def test_a_run_may_lack_most_of_what_is_measured(tmp_path):
    """As from a process that was killed, or from a version that measured less."""
    nothing = {"turns": [], "strip": [], "ttft_us": [], "tpot_us": [], "e2e_us": [], "itl_us": [], "gap_us": []}
    runs = [comparison.run(of, 0, **nothing, processes=[]) for of in (arm("rpyc"), arm("peer"))]
    folder = comparison.write(tmp_path, comparison.plan([arm("rpyc"), arm("peer"), arm("broadcast")], 2), runs)
    with (folder / RUNS).open("ab") as file:
        file.write(b'{"arm": {"stage": "bro')  # interrupted while writing
    page = write_report(folder, [])[0]
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.faults == broken_links(page, reader) == []
    assert "not whole: 2 of 6 runs are there" in reader.text
    assert "Without any run: broadcast level replicated TP 2 DP 1." in reader.text
    assert "output throughput" in reader.text


def test_files_of_benches_may_lie_elsewhere(tmp_path):
    folder = comparison.write(tmp_path / "in", comparison.plan([arm("peer")], 1), [comparison.run(arm("peer"), 0)])
    beside = tmp_path / "overhead.json"
    beside.write_text(json.dumps({"bench": "overhead", "ratio": pairwise_ratio([1.1], [1.0]), "holds": True}))
    page = write_report(folder, [beside])[0]
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.faults == broken_links(page, reader) == []
    assert "../overhead.json" in reader.links
    assert "The bench's own bounds hold." in reader.text


def test_every_part_of_a_turn_has_a_look():
    assert set(style.PARTS) == {style.group_of(part) for part in tracing.PARTS} - {"idle"}


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda folder: None, "holds no comparison: plan.json: No such file or directory"),
        (lambda folder: (folder / PLAN).write_text("{}"), "plan.json: Object missing required field"),
        (lambda folder: comparison.write(folder, comparison.plan([arm("peer")], 1), []), "no run has ended yet"),
        (
            lambda folder: comparison.write(
                folder, comparison.plan([arm("peer")], 1), [comparison.run(arm("rpyc"), 0)]
            ),
            "none of its runs is of an arm that plan.json names",
        ),
    ],
)
def test_a_bad_folder_is_one_line_and_status_2(tmp_path, capfd, prepare, said):
    prepare(tmp_path)
    assert _status(["report", str(tmp_path)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("python -m evolution report: error: ")
    assert said in line


def test_a_file_that_is_not_of_a_bench_is_one_line_and_status_2(tmp_path, capfd):
    folder = comparison.write(tmp_path / "in", comparison.plan([arm("peer")], 1), [comparison.run(arm("peer"), 0)])
    (tmp_path / "x.json").write_text("[]")
    assert _status(["report", str(folder), "--also", str(tmp_path / "x.json")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "x.json is not the result of a bench: expected what `bench NAME --json` writes" in line


def _status(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code
