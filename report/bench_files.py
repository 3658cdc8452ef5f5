"""Result files of benches (`python -m evolution bench NAME --json FILE`) on the page of a comparison.

A bench that has a picture, `experiments.bench.NAME_plot.draw`, is drawn by it; of any other the ratios with their
intervals are. What a file holds of ratios and of lists of figures becomes its table.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from matplotlib import pyplot as plt

from experiments.intervals import remark, shown
from report import claims
from report.cautions import null_figures
from report.comparison import number
from report.pictures import forest, null
from report.pictures.style import FOLDER, OTHER_STAGE, WIDTH, Picture, inline, save
from report.table_files import TableFile, simple_table
from report.words import interval_words, micro, of_many

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
    "scheduling": "Every rank plans, or rank 0 for all",
    "dispatch": "Which replica gets the next request",
    "http": "What HTTP adds to the offline engine",
    "planning": "Planning a turn",
    "radix": "The radix cache against a plain one",
    "engine": "The engine against transformers",
    "claims": "What is said of this history, predicted and measured",
}
MOST_ROWS = 80
MOST_COLUMNS = 10
VERDICTS = ("holds", "undecided", "fails")
# Of `bench null`, what the page's own words are made of.
OF_NULL = {
    "intervals", "share_that_holds_1", "median_half_width", "most_half_width", "verdict", "shapes", "repeats", "rounds",
}  # fmt: skip


@dataclass
class Bench:
    """`file`: its name beside the page. `says`: sentences that hold whatever the bench."""

    name: str
    file: str
    result: dict[str, Any]
    pictures: list[Picture] = field(default_factory=list)
    tables: list[TableFile] = field(default_factory=list)
    says: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return TITLES[self.name]


def find_benches(folder: Path, also: list[Path]) -> list[Bench]:
    """Those in the folder, and those given, which are copied into it, so that the page's links go where it goes.
    ValueError of one line where another result of the bench lies there."""
    for path in also:
        bench = read_bench(path)
        copy = folder / f"{bench.name}.json"
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise ValueError(f"--also {path}: {copy} is there already and is another result; remove it first")
        if not copy.exists():
            shutil.copyfile(path, copy)
    paths = [path for path in sorted(folder.glob("*.json")) if is_bench(path)]
    benches = {bench.name: bench for bench in map(read_bench, paths)}
    place = {name: number for number, name in enumerate(TITLES)}
    return sorted(benches.values(), key=lambda bench: place.get(bench.name, len(place)))


def read_bench(path: Path) -> Bench:
    """ValueError of one line if it is not the result of a bench."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file; expected what `bench NAME --json` writes")
    try:
        result = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}; expected what `bench NAME --json` writes") from None
    if not isinstance(result, dict) or not re.fullmatch(r"\w+", str(result.get("bench", ""))):
        raise ValueError(f"{path} is not the result of a bench: expected what `bench NAME --json` writes")
    if result["bench"] not in TITLES:
        raise ValueError(f"{path}: there is no bench {result['bench']!r}; there are {', '.join(sorted(TITLES))}")
    if result["bench"] == "null" and not result.keys() >= OF_NULL:
        raise ValueError(
            f"{path} lacks {', '.join(sorted(OF_NULL - result.keys()))}: measure it again with `bench null`"
        )
    if result["bench"] == "claims" and (wrong := claims.what_is_wrong(result)):
        raise ValueError(f"{path}: {wrong}: measure it again with `claims --run`")
    return Bench(result["bench"], path.name, result)


def is_bench(path: Path) -> bool:
    try:
        read_bench(path)
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
        rows = [[micro(label), shown(one), str(len(one["pairs"])), remark(one)] for label, one in ratios]
        columns = ["ratio of", f"median [{interval_words(len(one['pairs']) for _, one in ratios)}]", "pairs", "remark"]
        bench.tables.append(simple_table(f"{bench.name}-ratios", f"{bench.title}: ratios", columns, rows, 0))
    if bench.name != "null" and not importlib.util.find_spec(plot):
        bench.tables += list(_records(bench))
    if bench.name == "claims":
        bench.says, bench.tables = [claims.summary(bench.result)], [claims.table(bench.result)]
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
    """Whether a field says which row it is, and not what came out: what was measured has many digits."""
    if isinstance(value, str):
        return key not in ("verdict", "unit") and len(value) <= 50
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, float) and len(f"{value}") <= 4)


def _word(key: str, value: Any) -> str:
    return value if isinstance(value, str) and not value.isdigit() else f"{key.replace('_', ' ')} {value}"


def _says(bench: Bench, ratios: list[tuple[str, dict[str, Any]]]) -> list[str]:
    lines = []
    if bench.name == "null":
        figures = null_figures(bench.result)
        lines.append(f"{figures[0].upper()}{figures[1:]}.")
    found = Counter(verdicts_in(bench.result))
    if count := sum(found.values()):
        counts = ", ".join(f"{found[word]} {word}" for word in VERDICTS if found[word])
        lines.append(f"Verdicts on {of_many(count, 'bound')} that the bench sets: {counts}.")
    return lines


def verdicts_in(result: dict[str, Any]) -> list[str]:
    """Of every bound: of what the bench measured, or where it says none of these, its own."""
    own = [result["verdict"]] if result.get("verdict") in VERDICTS else []
    return list(_verdicts({name: value for name, value in result.items() if name != "verdict"})) or own


def _verdicts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "verdict" and inner in VERDICTS:
                yield inner
            elif key == "verdicts" and isinstance(inner, dict):
                yield from (one for one in inner.values() if one in VERDICTS)
            else:
                yield from _verdicts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _verdicts(inner)


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
        pictures.append(
            Picture(
                path.stem, bench.title, caption_of(module), bench.file, 0, inline(text, path.stem, bench.title),
                round(points / 72 * 96),
            )
        )  # fmt: skip
    return pictures


def caption_of(module: Any) -> str:
    """Its CAPTION; where it has none, what its docstring says it draws."""
    if hasattr(module, "CAPTION"):
        return module.CAPTION
    words = (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    words = words.replace("`", "").split(": ", 1)[-1]
    return words[:1].upper() + words[1:]


def _forest(bench: Bench, ratios: list[tuple[str, dict[str, Any]]], folder: Path) -> Picture:
    drawn = ratios[:MOST_ROWS]
    figure, axes = plt.subplots(figsize=(WIDTH, 0.24 * len(drawn) + 1.3), layout="constrained")
    forest.rows(axes, [(micro(label), one, OTHER_STAGE) for label, one in drawn])
    axes.set_xlabel("ratio", fontsize=9)
    forest.add_legend(figure)
    left = f" {len(ratios) - len(drawn)} more are in the table." if len(ratios) > len(drawn) else ""
    caption = "Each row is a ratio of two arms that were measured in turn. " + forest.caption([one for _, one in drawn])
    return save(figure, folder, f"bench-{bench.name}", bench.title, caption + left, bench.file, 0)


def _records(bench: Bench) -> Iterator[TableFile]:
    """Of every list of records in a result, ratios left out: their figures and words."""
    for key, rows in bench.result.items():
        if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
            continue
        if any(ratios_in(rows)):  # they have their table
            continue
        names = [name for name, value in rows[0].items() if isinstance(value, str | int | float | bool)][:MOST_COLUMNS]
        if len(names) > 1:
            lines = [[_shown(row.get(name)) for name in names] for row in rows[:MOST_ROWS]]
            yield simple_table(f"{bench.name}-{key}", f"{bench.title}: {key}", names, lines, 0)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else "" if value is None else micro(str(value))
