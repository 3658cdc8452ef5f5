"""A real comparison's page in a real browser, at the widths of a desk and of a phone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.browser import find_browser, open_page
from tests.helpers.html import Reader, broken_links

# Opens all that is folded, so that all of it is laid out.
UNFOLD = "document.querySelectorAll('details').forEach(one => { one.open = true })"
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
# Elements that reach out of the page, or out of a box that does not scroll.
CUT = """[...document.querySelectorAll('main *, header *')]
    .filter(one => !one.closest('svg') || one.tagName === 'svg')
    .filter(one => !one.closest('.scroll') || one.classList.contains('scroll'))
    .filter(one => one.getBoundingClientRect().right > window.innerWidth + 1 || one.getBoundingClientRect().left < -1)
    .map(one => one.outerHTML.slice(0, 80))"""
# A box that scrolls must show both ends of what it holds.
OUT_OF_BOX = """[...document.querySelectorAll('.scroll')].filter(box => {
        const frame = box.getBoundingClientRect()
        const inner = [...box.querySelectorAll('svg, img, table')].filter(one => !one.parentElement.closest('svg'))
        const edges = side => inner.map(one => one.getBoundingClientRect()[side])
        box.scrollLeft = 0
        const cutLeft = Math.min(...edges('left')) < frame.left - 1
        const wide = Math.max(...edges('right')) > frame.right + 1
        box.scrollLeft = 1e6
        const cutRight = Math.max(...edges('right')) > frame.right + 1
        box.scrollLeft = 0
        return inner.length === 0 || cutLeft || cutRight || (wide && getComputedStyle(box).overflowX !== 'auto')
    }).map(box => box.getAttribute('aria-label'))"""
# Where something is wider than a phone the reader is told.
HINTS = """[...document.querySelectorAll('.hint')].filter(one => getComputedStyle(one).display !== 'none').length"""
EMPTY = """[...document.querySelectorAll('img, .picture svg')]
    .filter(one => (one.tagName === 'IMG' ? one.naturalWidth : one.viewBox.baseVal.width) === 0
        || one.getBoundingClientRect().width < 300)
    .map(one => one.closest('figure').id)"""


MEASURED = Path("report/measured").resolve()
BENCHES = [str(MEASURED / f"{name}.json") for name in ("overhead", "idle", "mechanisms", "scheduling")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    evolution = [sys.executable, "-m", "evolution"]
    work = ["--num-prompts", "4", "--input-len", "16", "--output-len", "16", "--rounds", "1", "--repeats", "1"]
    arms = [
        "--device",
        "sim",
        "--stages",
        "rpyc,peer",
        "--tp-size",
        "2",
        "--dp-size",
        "1,2",
        "--constants",
        "level,era",
    ]
    subprocess.run([*evolution, "compare", *arms, *work, "--out", str(folder)], check=True, capture_output=True)
    report = [*evolution, "report", str(folder), "--also", *BENCHES]
    subprocess.run(report, check=True, capture_output=True)
    # Any picture will do for one of a trace's viewer.
    (folder / "trace-peer.png").write_bytes((folder / "pictures" / "cpu-by-process.png").read_bytes())
    (folder / "trace-peer.txt").write_text("A turn of peer")
    subprocess.run(report, check=True, capture_output=True)
    return folder / "index.html"


def test_a_real_comparison_makes_a_whole_page(page):
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.faults == broken_links(page, reader) == reader.unsourced == []
    for section in ("short", "seen", "surprises", "counts", "ratios", "times", "turn", "size", "cpu", "processes",
                    "benches", "measured", "glossary"):  # fmt: skip
        assert section in reader.ids
    for bench in BENCHES:
        assert Path(bench).name in reader.links
    assert "level and era: rpyc / peer: 5 / 4 at TP 2 DP 1; 7 / 7 at TP 2 DP 2." in reader.text
    assert "Identical in every run." in reader.text
    assert "A turn of peer" in reader.text
    assert re.search(r"\bus\b", reader.text) is None  # µs, everywhere


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_and_nothing_is_missing(page, tmp_path, width):
    with open_page(page, width, 900, tmp_path) as opened:
        opened.evaluate(UNFOLD)
        assert opened.evaluate(OVERFLOW) <= 0
        assert opened.evaluate(CUT) == []
        assert opened.evaluate(OUT_OF_BOX) == []
        assert opened.evaluate(EMPTY) == []
        assert (opened.evaluate(HINTS) > 0) == (width < 600)
        drawn = len(list((page.parent / "pictures").glob("*.svg")))
        assert opened.evaluate("document.querySelectorAll('.picture svg').length") == drawn >= 19
        assert opened.evaluate("document.querySelectorAll('img').length") == 1
        assert opened.messages == []


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome on this machine")
def test_a_box_that_cuts_its_picture_would_be_seen(page, tmp_path):
    with open_page(page, 390, 900, tmp_path) as opened:
        opened.evaluate(UNFOLD)
        opened.evaluate("document.querySelectorAll('.scroll').forEach(box => { box.style.overflow = 'hidden' })")
        assert len(opened.evaluate(OUT_OF_BOX)) > 10
