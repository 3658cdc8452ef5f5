"""Boxes with text, and arrows between them, in a panel of 10 by 10."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK = "#222222"
GREY = "#8a8a8a"
PALE = "#f4f4f4"


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    def edge(self, towards: tuple[float, float]) -> tuple[float, float]:
        """Where the line from the centre towards a point leaves the box."""
        (cx, cy), dx, dy = self.centre, towards[0] - self.centre[0], towards[1] - self.centre[1]
        scales = [half / abs(d) for half, d in ((self.width / 2, dx), (self.height / 2, dy)) if d]
        scale = min(scales, default=0.0)
        return cx + dx * scale, cy + dy * scale


@dataclass
class Panel:
    """`boxes` by name. Colour and line width say what is new in a panel."""

    axes: Axes
    size: float = 8.0  # of the text, points
    boxes: dict[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.axes.set(xlim=(-0.25, 10.25), ylim=(-0.1, 10.1))  # room for a frame's line
        self.axes.axis("off")

    def box(self, name: str, where: tuple[float, float, float, float], text: str, colour: str = GREY) -> None:
        """`where`: left, bottom, width, height."""
        box = self.boxes[name] = Box(*where)
        new = colour != GREY
        self.axes.add_patch(
            FancyBboxPatch(
                (box.x, box.y),
                box.width,
                box.height,
                boxstyle="round,pad=0,rounding_size=0.25",
                facecolor="white" if new else PALE,
                edgecolor=colour,
                linewidth=1.8 if new else 1.0,
                zorder=2,
            )  # fmt: skip
        )
        self.axes.text(*box.centre, text, fontsize=self.size, ha="center", va="center", color=INK, zorder=3)

    def frame(
        self,
        where: tuple[float, float, float, float],
        text: str,
        colour: str = GREY,
        line: str = ":",
        top: bool = False,
    ) -> None:
        """Around boxes, with a word at its lower left, or upper left."""
        x, y, width, height = where
        self.axes.add_patch(
            FancyBboxPatch(
                (x, y),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.25",
                facecolor="none",
                edgecolor=colour,
                linestyle=line,
                linewidth=1.0,
                zorder=1,
            )  # fmt: skip
        )
        row, side = (y + height - 0.12, "top") if top else (y + 0.12, "bottom")
        self.axes.text(x + 0.15, row, text, fontsize=self.size - 1, color=colour, va=side, zorder=3)

    def arrow(
        self, start: str, end: str, label: str = "", colour: str = GREY, at: float = 0.5, bend: float = 0.0,
        line: str = "-", shift: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        """From box to box. `at`: where on it the label stands, 0 to 1; `shift`: moves the label off the line."""
        a, b = self.boxes[start], self.boxes[end]
        tail, head = a.edge(b.centre), b.edge(a.centre)
        self.axes.add_patch(
            FancyArrowPatch(
                tail,
                head,
                arrowstyle="-|>",
                mutation_scale=9,
                color=colour,
                linewidth=1.3,
                linestyle=line,
                connectionstyle=f"arc3,rad={bend}",
                shrinkA=1,
                shrinkB=1,
                zorder=1,
            )  # fmt: skip
        )
        if label:
            x = tail[0] + (head[0] - tail[0]) * at + bend * (head[1] - tail[1]) / 2 + shift[0]
            y = tail[1] + (head[1] - tail[1]) * at - bend * (head[0] - tail[0]) / 2 + shift[1]
            background = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            self.axes.text(
                x, y, label, fontsize=self.size - 1, color=colour, ha="center", va="center", bbox=background, zorder=4
            )
