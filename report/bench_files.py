"""Result files of benches (`python -m evolution bench NAME --json FILE`) on the page of a comparison.

A bench that has a picture, `experiments.bench.NAME_plot.draw`, is drawn by it; of any other the ratios with their
intervals are. What a file holds of ratios and of lists of figures becomes its table.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from matplotlib import pyplot as plt

from experiments.intervals import remark, shown
from report.comparison import number
from report.pictures import forest, null
from report.pictures.style import FOLDER, OTHER_STAGE, WIDTH, Picture, inline, save
from report.table_files import TableFile, simple_table

ORDER = (
    "null",
    "overhead",
    "idle",
    "distribute",
    "mechanisms",
    "image",
    "overlap",
    "startup",
    "planning",
    "radix",
    "engine",
)
# In the order of the page.
TITLES = {
    "null": "A/A: arms that are alike",
    "overhead": "What the measuring takes",
    "idle": "Idle engines",
    "distribute": "Bringing a turn's input to the ranks, over the bare mechanism",
    "mechanisms": "The mechanisms alone",
    "image": "Cost against the size of a message",
    "overlap": "Planning the next turn during the forward",
    "startup": "Start to first token",
    "planning": "Planning a turn",
    "radix": "The radix cache against a plain one",
    "engine": "The engine against transformers",
}
MOST_ROWS = 80
MOST_COLUMNS = 10
DRAWN = (
    "Each row is a ratio of two arms that were measured in turn, with its 95% interval, on a logarithmic scale. "
    "Filled: a difference. Hollow: no difference seen, the interval holds 1. Crossed: the interval is wider than the "
    "effect."
)


@dataclass
class Bench:
    """`file`: where it lies, relative to the page. `says`: sentences that hold whatever the bench."""

    name: str
    file: str
    result: dict[str, Any]
    pictures: list[Picture] = field(default_factory=list)
    tables: list[TableFile] = field(default_factory=list)
    says: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)


def read_bench(path: Path, file: str) -> Bench:
    """ValueError of one line if it is not the result of a bench."""
    try:
        result = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}; expected what `bench NAME --json` writes") from None
    if not isinstance(result, dict) or not re.fullmatch(r"\w+", str(result.get("bench", ""))):
        raise ValueError(f"{path} is not the result of a bench: expected what `bench NAME --json` writes")
    return Bench(result["bench"], file, result)


def is_bench(path: Path) -> bool:
    try:
        read_bench(path, "")
    except ValueError:
        return False
    return True


def fill(bench: Bench, folder: Path) -> None:
    """Draws its pictures and makes its tables, in the folder of the page."""
    ratios = list(ratios_in(bench.result))
    bench.says = _says(bench, ratios)
    plot = f"experiments.bench.{bench.name}_plot"
    if importlib.util.find_spec(plot):
        bench.pictures = _drawn_by(importlib.import_module(plot), bench, folder)
    elif bench.name == "null":
        bench.pictures = [null.draw(folder, bench.result, bench.file)]
    elif ratios:
        bench.pictures = [_forest(bench, ratios, folder)]
    if ratios:
        rows = [[label, shown(one), str(len(one["pairs"])), remark(one)] for label, one in ratios]
        columns = ["ratio of", "median [95% interval]", "pairs", "remark"]
        bench.tables.append(simple_table(f"{bench.name}-ratios", f"{bench.title}: ratios", columns, rows, 0))
    if bench.name != "null" and not importlib.util.find_spec(plot):
        bench.tables += list(_records(bench))
    for table in bench.tables:
        table.write(folder)


def ratios_in(value: Any, label: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, ratio) of everything that looks like what `pairwise_ratio` gives, at any depth; the name is made of the
    keys on the way to it and of what tells a row of a list from the others."""
    if isinstance(value, dict):
        if {"median", "low", "high", "pairs"} <= value.keys():
            yield " ".join(label), value
            return
        for key, inner in value.items():
            plain = key in ("ratio", "ratios", "rows", "cells", "yardsticks", "intervals")
            yield from ratios_in(inner, label if plain else (*label, str(key).replace("_", " ")))
    elif isinstance(value, list):
        for row in value:
            words = (
                tuple(_word(key, inner) for key, inner in row.items() if _tells(key, inner))
                if isinstance(row, dict)
                else ()
            )
            yield from ratios_in(row, (*label, *words))


def _tells(key: str, value: Any) -> bool:
    """Whether a field says which row it is, and not what came out."""
    short = isinstance(value, str) and len(value) <= 50
    return key not in ("verdict", "unit") and (short or (isinstance(value, int) and not isinstance(value, bool)))


def _word(key: str, value: Any) -> str:
    return value if isinstance(value, str) and not value.isdigit() else f"{key} {value}"


def _says(bench: Bench, ratios: list[tuple[str, dict[str, Any]]]) -> list[str]:
    lines = []
    if bench.name == "null":
        share, width, most = (bench.result[n] for n in ("share_that_holds_1", "median_half_width", "most_half_width"))
        lines.append(
            f"Of {len(ratios)} intervals between arms that are alike {share:.0%} hold 1 (85 to 99% is right); their "
            f"median half-width is {width:.1%} (at most {most:.0%})."
        )
    if "holds" in bench.result:
        lines.append(f"The bench's own bounds {'hold' if bench.result['holds'] else 'do not all hold'}.")
    return lines


def _drawn_by(module: Any, bench: Bench, folder: Path) -> list[Picture]:
    """By the bench's own picture. A result of another version may lack what it draws: then there is none."""
    try:
        paths = [Path(path) for path in module.draw(bench.result, folder / FOLDER)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        bench.says.append(f"This version cannot draw this file ({type(error).__name__}: {error}).")
        return []
    pictures = []
    for path in (path for path in paths if path.suffix == ".svg"):
        text = path.read_text(encoding="utf-8")
        points = float(re.search(r'<svg[^>]*? width="([\d.]+)pt"', text)[1])
        words = (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        caption = words.replace("`", "").split(": ", 1)[-1]
        caption = caption[:1].upper() + caption[1:]
        pictures.append(
            Picture(path.stem, bench.title, caption, bench.file, 0, inline(text, path.stem), round(points / 72 * 96))
        )
    return pictures


def _forest(bench: Bench, ratios: list[tuple[str, dict[str, Any]]], folder: Path) -> Picture:
    drawn = ratios[:MOST_ROWS]
    figure, axes = plt.subplots(figsize=(WIDTH, 0.24 * len(drawn) + 1.3), layout="constrained")
    for row, (_, one) in enumerate(drawn):
        forest.mark(axes, row, one, OTHER_STAGE)
        axes.annotate(
            shown(one),
            (1.01, row),
            xycoords=("axes fraction", "data"),
            fontsize=8.5,
            va="center",
            annotation_clip=False,
        )
    axes.set_yticks(range(len(drawn)), [label or "ratio" for label, _ in drawn])
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.set_xlabel("ratio", fontsize=9)
    forest.finish(axes)
    forest.add_legend(figure)
    left = f" {len(ratios) - len(drawn)} more are in the table." if len(ratios) > len(drawn) else ""
    return save(figure, folder, f"bench-{bench.name}", bench.title, DRAWN + left, bench.file, 0)


def _records(bench: Bench) -> Iterator[TableFile]:
    """Of every list of records in a result: their figures and words."""
    for key, rows in bench.result.items():
        if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
            continue
        names = [name for name, value in rows[0].items() if isinstance(value, str | int | float | bool)][:MOST_COLUMNS]
        if len(names) > 1:
            lines = [[_shown(row.get(name)) for name in names] for row in rows[:MOST_ROWS]]
            yield simple_table(f"{bench.name}-{key}", f"{bench.title}: {key}", names, lines, 0)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else "" if value is None else str(value)
