"""The two figures of `history --out DIR`: the three stages, and the story in six panels; as PNG and SVG."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from evolution.history import stages_figure, strip_figure

PNG_DPI = 130


def draw_all(folder: Path) -> list[Path]:
    """The paths of the files written; the same files each time."""
    return [
        path
        for name, draw in (("three-stages", stages_figure.draw), ("strip", strip_figure.draw))
        for path in save(draw(), folder, name)
    ]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with plt.rc_context({"svg.hashsalt": name}):
        figure.savefig(paths[0], dpi=PNG_DPI)
        figure.savefig(paths[1], metadata={"Date": None})
    plt.close(figure)
    return paths
