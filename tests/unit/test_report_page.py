"""The page of a comparison: whole, self-contained, true to what is there, and not stopped by what is not."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from common import tracing
from evolution.cli import main
from experiments.compare.records import PLAN, RUNS
from experiments.intervals import pairwise_ratio
from report.bench_files import read_bench
from report.page import write_report
from report.pictures import style
from report.pictures.turn_parts import bars_of
from report.table_files import simple_table
from report.words import coverage_words, interval_words
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
    alike = [{"arm": "peer level", "metric": "TPOT", "judged": True, **ratio}]
    null = {"bench": "null", "intervals": alike, "share_that_holds_1": 1.0, "median_half_width": 0.1,
            "most_half_width": 0.03, "verdict": "fails", "shapes": ["TP 1 DP 1"], "repeats": 3,
            "rounds": 2}  # fmt: skip
    made = {"bench": "radix", "unit": "<us>", "ratios": {"a <b>": ratio}, "rows": [{"stage": "peer", "cores": 0.5}]}
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
    assert len(reader.links) > 60


def test_a_link_that_leads_nowhere_would_be_seen(tmp_path):
    (tmp_path / "outside.csv").touch()
    (tmp_path / "in").mkdir()
    page = tmp_path / "in" / "index.html"
    page.write_text(
        '<a href="none.csv">a</a><a href="../outside.csv">b</a><a href="#none">c</a><a href="#x" id="x">d</a>'
    )
    assert broken_links(page, Reader(page.read_text())) == ["none.csv", "../outside.csv", "#none"]


def test_every_picture_and_table_stands_beside_a_link_to_its_figures(page):
    assert Reader(page.read_text(encoding="utf-8")).unsourced == []
    assert Reader("<svg></svg><svg></svg><a href='x.csv'>x</a>").unsourced == ["<svg> at (1, 0)"]


def test_it_needs_no_network_and_runs_no_script(page):
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    reader = Reader(text)
    assert [link for link in reader.loaded if not link.startswith("data:")] == []
    assert reader.loaded  # the icon, so that a browser asks for none
    assert "@import" not in reader.styles and "url(" not in reader.styles
    outside = {link for link in reader.links if link.startswith("http")}
    assert outside == {"https://example.org/", "http://example.org/x.png"}  # the note's own, to be followed
    assert "<img" not in text


def test_every_picture_is_there_twice_and_stands_in_the_page(page):
    pictures = page.parent / "pictures"
    names = {path.stem for path in pictures.iterdir()}
    assert {f"{name}.{kind}" for name in names for kind in ("png", "svg")} == {path.name for path in pictures.iterdir()}
    for expected in ("processes-", "turn-", "parts-", "latency-", "cost-by-size", "cpu-by-process", "ratios-",
                     "bench-null", "bench-radix"):  # fmt: skip
        assert any(name.startswith(expected) for name in names), expected
    reader = Reader(page.read_text(encoding="utf-8"))
    assert names <= reader.ids
    assert reader.images == len(names)
    assert page.read_text(encoding="utf-8").count('<svg role="img" aria-label="') == len(names)


def test_tables_are_there_as_csv_and_as_markdown(page):
    tables = page.parent / "tables"
    names = {path.stem for path in tables.iterdir()}
    assert {"counts", "times", "ratios-stages", "ratios-era", "turn-parts", "processes"} <= names
    with (tables / "ratios-stages.csv").open() as file:
        rows = list(csv.DictReader(file))
    (tpot,) = [row for row in rows if row["metric"] == "TPOT" and (row["stage"], row["constants"]) == ("rpyc", "level")]
    assert (tpot["over"], tpot["pairs"]) == ("peer level replicated TP 2 DP 1", "3")
    assert float(tpot["median"]) == pytest.approx(1.01 / 1.41, abs=1e-4)
    assert "| TPOT | 0.72 [0.71, 0.72: range of 3] |" in (tables / "ratios-stages.md").read_text()


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
    assert "level: rpyc 0.72 times peer's [0.71, 0.72: range of 3] at TP 2 DP 1." in text
    assert "constants at TP 1 DP 1, 3 repeats of 2 rounds) 100% hold 1" in text
    assert "95% interval " not in text  # three pairs are too few
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
    assert "Some arms ran once: nothing is said of a difference there" in reader.text
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
    beside = tmp_path / "of another name.json"
    beside.write_text(json.dumps({"bench": "overhead", "ratio": pairwise_ratio([1.1], [1.0]), "verdict": "undecided"}))
    write_report(folder, [beside])
    beside.unlink()
    page = folder.rename(tmp_path / "moved") / "index.html"
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.faults == broken_links(page, reader) == []
    assert "overhead.json" in reader.links
    assert "Verdicts on 1 bound that the bench sets: 1 undecided." in reader.text


def test_another_result_of_a_bench_is_not_overwritten(tmp_path, capfd):
    folder = comparison.write(tmp_path / "in", comparison.plan([arm("peer")], 1), [comparison.run(arm("peer"), 0)])
    for path, unit in ((folder / "radix.json", "s"), (tmp_path / "radix.json", "ms")):
        path.write_text(json.dumps({"bench": "radix", "unit": unit}))
    assert _status(["report", str(folder), "--also", str(tmp_path / "radix.json")]) == 2
    assert "is there already and is another result; remove it first" in capfd.readouterr().err
    assert read_bench(folder / "radix.json").result["unit"] == "s"


def test_every_axis_has_a_name(tmp_path, monkeypatch):
    figures = {}
    savefig = Figure.savefig

    def keep(self: Figure, path: Path, **settings: object) -> None:
        figures[Path(path).stem] = [
            any(one.get_xlabel() or one.get_ylabel() for one in axes.get_shared_x_axes().get_siblings(axes))
            for axes in self.axes
            if axes.axison
        ]
        savefig(self, path, **settings)

    monkeypatch.setattr(Figure, "savefig", keep)
    write_report(whole(tmp_path), [])
    assert len(figures) >= 10
    assert {name for name, named in figures.items() if not all(named)} == set()


@given(st.floats(1e-6, 1e9), st.floats(1.0001, 1e9))
def test_a_logarithmic_axis_has_ticks(low, times):
    ticks = style.log_ticks(low, low * times)
    assert 2 <= len(ticks) <= 13
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= low * times for tick in ticks)


def test_ticks_are_round():
    assert style.log_ticks(1.55, 1.95) == pytest.approx([1.6, 1.7, 1.8, 1.9])
    assert style.log_ticks(8, 1200) == [10, 100, 1000]


def test_an_interval_is_called_95_only_where_it_is():
    assert interval_words([6, 9]) == "95% interval"
    assert interval_words([3, 3]) == "range (of 3: less sure than a 95% interval)"
    assert interval_words([2, 3]) == "range (of 2 to 3: less sure than a 95% interval)"
    assert interval_words([3, 9]) == "95% interval (of fewer than 6 the range, which is less sure)"
    assert coverage_words([2]) == "50%"


def test_what_markdown_would_take_for_its_own_is_text_in_a_table():
    table = simple_table("x", "*x*", ["a", "b"], [["a|b", "<b> `c`"]], 1)
    assert table.markdown() == (
        "# \\*x\\*\n\n1 run; value by value in `x.csv`.\n\n|  | b |\n| --- | ---: |\n| a\\|b | \\<b> \\`c\\` |\n"
    )


def test_every_part_of_a_turn_has_a_look():
    assert set(style.PARTS) == {style.group_of(part) for part in tracing.PARTS} - {"idle"}


def test_parts_are_in_one_order_whatever_the_hash_seed():
    one = arm("peer")
    bars = bars_of([comparison.run(one, repeat) for repeat in range(2)], [one], {one: "peer"})
    for of_bar in bars.values():
        for parts in of_bar:
            assert list(parts) == [part for part in style.PARTS if part in parts]
            assert len(parts) > 2


def test_two_parts_differ_in_grey_too():
    def grey(colour: str) -> float:
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), to_rgb(colour), strict=True))

    for (one, (colour, hatch)), (other, (of_other, its)) in itertools.combinations(style.PARTS.items(), 2):
        assert hatch != its or abs(grey(colour) - grey(of_other)) > 0.12, (one, other)


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
