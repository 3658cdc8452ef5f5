"""The tables of a comparison, for the page, as CSV and as Markdown."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from experiments.compare.metrics import Metric
from experiments.compare.records import Arm, Plan
from experiments.intervals import ENOUGH, shown
from report.comparison import Ratio, Value, heading, number
from report.words import micro, of_many

FOLDER = "tables"
ARM_COLUMNS = ["stage", "constants", "scheduling", "tp_size", "dp_size", "copy"]


@dataclass(frozen=True)
class Cell:
    """`text`, `small` below it, and `kind` for the page: "", "none" (no difference seen), "unstable" or "single"."""

    text: str
    small: str = ""
    kind: str = ""

    @property
    def plain(self) -> str:
        return f"{self.text} {self.small}".strip()


@dataclass(frozen=True)
class Group:
    """One table on the page, say of one shape. `words`: its cells hold sentences, which are set as such."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    words: bool = False


@dataclass
class TableFile:
    """What stands in NAME.md as it does on the page, and in NAME.csv value by value."""

    name: str
    title: str
    groups: list[Group]
    columns: list[str]
    lines: list[list[str]] = field(default_factory=list)
    runs: int = 0

    @property
    def files(self) -> list[str]:
        return [f"{FOLDER}/{self.name}.{kind}" for kind in ("csv", "md")]

    def write(self, folder: Path) -> None:
        (folder / FOLDER).mkdir(exist_ok=True)
        with (folder / FOLDER / f"{self.name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([self.columns, *self.lines])
        (folder / FOLDER / f"{self.name}.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        runs = f"{of_many(self.runs, 'run')}; " if self.runs else ""
        parts = [f"# {_escaped(self.title)}", f"{runs}value by value in `{self.name}.csv`."]
        for group in self.groups:
            head = ["", *group.columns]
            lines = [head, ["---", *["---:"] * len(group.columns)]]
            lines += [[title, *(cell.plain for cell in cells)] for title, cells in group.rows]
            table = "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)
            parts.append((f"## {_escaped(group.title)}\n\n" if group.title else "") + table)
        return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """What Markdown would take for emphasis, code, HTML or a cell's end is text here."""
    return re.sub(r"([\\`*<|])", r"\\\1", text).replace("\n", " ")


def value_table(
    name: str, title: str, plan: Plan, found: list[Value], metrics: list[Metric], intervals: bool, runs: int
) -> TableFile:
    """Medians, for each shape arms side by side; `intervals`: show those too, or the range of few runs."""
    columns = [*ARM_COLUMNS, "metric", "unit", "median", "low", "high", "runs"]
    table = TableFile(name, title, [], columns, [_value_line(value) for value in found], runs)

    def cell(value: Value | None) -> Cell:
        if value is None:
            return Cell("-")
        n = len(value.samples)
        few = f": range of {n}" if n < ENOUGH else ""
        small = f"[{number(value.low)}, {number(value.high)}{few}]" if intervals and n > 1 else ""
        return Cell(number(value.median), small)

    by_place = {(value.metric.name, value.arm): value for value in found}
    for shape in _shapes(plan.arms):
        arms = [arm for arm in plan.arms if arm.shape == shape and any(value.arm == arm for value in found)]
        rows = []
        for metric in metrics:
            cells = [cell(by_place.get((metric.name, arm))) for arm in arms]
            if any(one.text not in ("-", "0") for one in cells):
                rows.append((f"{metric.name}, {micro(metric.unit)}" if metric.unit else metric.name, cells))
        if rows:
            table.groups.append(Group(shape, [heading(plan, arm) for arm in arms], rows))
    return table


def ratio_table(name: str, title: str, plan: Plan, found: list[Ratio], runs: int) -> TableFile:
    """For each shape the arms above the line of the ratio side by side."""
    columns = [*ARM_COLUMNS, "over", "metric", "median", "low", "high", "pairs", "remark"]
    table = TableFile(name, title, [], columns, [_ratio_line(one) for one in found], runs)
    by_place = {(one.metric.name, one.above): one for one in found}
    metrics = list(dict.fromkeys(one.metric.name for one in found))
    for shape in _shapes([one.above for one in found]):
        arms = list(dict.fromkeys(one.above for one in found if one.above.shape == shape))
        rows = [(metric, [ratio_cell(by_place.get((metric, arm))) for arm in arms]) for metric in metrics]
        rows = [row for row in rows if any(cell.text != "-" for cell in row[1])]
        table.groups.append(Group(shape, [heading(plan, arm) for arm in arms], rows))
    return table


def ratio_cell(one: Ratio | None) -> Cell:
    if one is None:
        return Cell("-")
    median, interval = shown(one.ratio).split(" ", 1)
    if len(one.ratio["pairs"]) == 1:
        return Cell(median, "one pair", "single")
    if one.remark == "no difference seen":
        return Cell(median, f"{interval} =", "none")
    if one.remark:
        return Cell(median, f"{interval} ~", "unstable")
    return Cell(median, interval)


def parts_table(name: str, title: str, bars: dict[str, dict[str, tuple[dict, dict]]], runs: int) -> TableFile:
    """`bars`: group (shape and constants) -> bar -> (part -> us per turn, part -> us per token)."""
    table = TableFile(name, title, [], ["group", "thread", "part", "us_per_turn", "us_per_token"], [], runs)
    for group, both in bars.items():
        names = list(dict.fromkeys(part for turn, _ in both.values() for part in turn))
        rows: dict[str, list[Cell]] = defaultdict(list)
        for bar, (turn, token) in both.items():
            for part in names:
                rows[part].append(
                    Cell(number(turn[part]), f"{number(token[part])} a token") if part in turn else Cell("-")
                )
                if part in turn:
                    table.lines.append([group, bar, part, f"{turn[part]:.3f}", f"{token[part]:.5f}"])
        table.groups.append(Group(group, list(both), list(rows.items())))
    return table


def _value_line(value: Value) -> list[str]:
    figures = [f"{figure:.6g}" for figure in (value.median, value.low, value.high)]
    return [*_arm(value.arm), value.metric.name, value.metric.unit, *figures, str(len(value.samples))]


def _ratio_line(one: Ratio) -> list[str]:
    figures = [f"{one.ratio[name]:.4f}" for name in ("median", "low", "high")]
    pairs = len(one.ratio["pairs"])
    return [
        *_arm(one.above),
        one.below.name,
        one.metric.name,
        *figures,
        str(pairs),
        one.remark if pairs > 1 else "one pair",
    ]


def _arm(arm: Arm) -> list[str]:
    return [str(getattr(arm, column)) for column in ARM_COLUMNS]


def _shapes(arms: list[Arm]) -> list[str]:
    return list(dict.fromkeys(arm.shape for arm in arms))


def simple_table(name: str, title: str, columns: list[str], rows: list[list[str]], runs: int) -> TableFile:
    """A table that is the same on the page and in both files; the first column names the row."""
    group = Group("", columns[1:], [(row[0], [Cell(text) for text in row[1:]]) for row in rows])
    return TableFile(name, title, [group], columns, rows, runs)
