"""Cost against TP and DP: what a turn and a token cost when there are more ranks and more replicas."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from experiments.compare.records import Arm
from report.comparison import Value
from report.pictures.style import WIDTH, Picture, log_ticks, plain, save, stage_style
from report.words import interval_words, micro

METRICS = ("control plane of a turn", "control plane of a token", "CPU time a 1,000 tokens", "TPOT")
CAPTION = (
    "Cost against the number of ranks of a replica (T) and of replicas (D): medians, each with its {interval} as a "
    "bar. Lines join the points with equal D. Filled: level constants; hollow: era. The scales are logarithmic; what "
    "has one T and D is set side by side so that it can be told apart. Lower is cheaper."
)


def draw(folder: Path, values: list[Value], names: dict[Arm, str], source: str, runs: int) -> Picture | None:
    """`values`: those of METRICS among them. `names`: with the constants."""
    by_metric = {metric: [v for v in values if v.metric.name == metric and v.low > 0] for metric in METRICS}
    drawn = {metric: found for metric, found in by_metric.items() if found}
    if not drawn:
        return None
    figure, grid = plt.subplots(
        (len(drawn) + 1) // 2, 2, figsize=(WIDTH, 3.1 * ((len(drawn) + 1) // 2) + 0.7), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    places = place_of(sorted({(v.arm.dp_size, v.arm.tp_size) for found in drawn.values() for v in found}))
    lines: dict[str, Line2D] = {}
    for axes, (metric, found) in zip(grid.flat, drawn.items(), strict=False):
        lines |= _panel(axes, found, names, places)
        axes.set_title(metric, loc="left", fontsize=10, fontweight="bold")
        axes.set_ylabel(micro(found[0].metric.unit), fontsize=9)
    for axes in list(grid.flat)[len(drawn) :]:
        axes.axis("off")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=9,
                  handlelength=3)  # fmt: skip
    interval = interval_words({len(value.samples) for found in drawn.values() for value in found})
    caption = CAPTION.format(interval=interval)
    return save(figure, folder, "cost-by-size", "Cost against TP and DP", caption, source, runs)


def place_of(shapes: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """(D, T) -> x; a gap between two values of D."""
    places: dict[tuple[int, int], float] = {}
    x, before = 0.0, None
    for dp, tp in shapes:
        x += 0.0 if before is None else 1.0 if dp == before else 1.4
        places[dp, tp] = x
        before = dp
    return places


def _panel(axes: Axes, values: list[Value], names: dict[Arm, str], places: dict) -> dict[str, Line2D]:
    kinds = list(dict.fromkeys(names[value.arm] for value in values))
    lines = {}
    for number, kind in enumerate(kinds):
        shift = (number - (len(kinds) - 1) / 2) * 0.72 / max(1, len(kinds))
        of_kind = [value for value in values if names[value.arm] == kind]
        style = stage_style(of_kind[0].arm.stage)
        era = of_kind[0].arm.constants == "era"
        for dp in sorted({value.arm.dp_size for value in of_kind}):
            row = sorted((value for value in of_kind if value.arm.dp_size == dp), key=lambda value: value.arm.tp_size)
            x = [places[dp, value.arm.tp_size] + shift for value in row]
            middle = [value.median for value in row]
            spread = [[value.median - value.low for value in row], [value.high - value.median for value in row]]
            bars = axes.errorbar(
                x, middle, spread, color=style.colour, marker=style.marker, markersize=5.5, capsize=2.5, linewidth=0.9,
                linestyle=":" if era else style.line, markerfacecolor="white" if era else style.colour, elinewidth=1.2,
            )  # fmt: skip
            lines[kind] = Line2D(
                [], [], color=style.colour, marker=style.marker, linestyle=":" if era else style.line,
                markerfacecolor="white" if era else style.colour,
            )  # fmt: skip
            bars.lines[0].set_zorder(3)
    axes.set_yscale("log")
    ticks = log_ticks(*axes.get_ylim())
    axes.set_yticks(ticks, [f"{tick:,.6g}" for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(places.values()), [f"T {tp}\nD {dp}" for dp, tp in places])
    edges = list(places.values())
    axes.set_xlim(edges[0] - 0.6, edges[-1] + 0.6)
    axes.grid(axis="y", which="both", alpha=0.2)
    plain(axes)
    return lines
