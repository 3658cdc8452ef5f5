"""Reading a page as strictly as a test needs: every element is closed where it should be, no id stands twice."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """`links`: all href and src; `faults`: what is wrong; `words`: the text outside of pictures and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.faults: list[str] = []
        self.words: list[str] = []
        self.images = 0
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.faults.append(f"</{tag}> at {self.getpos()} closes {self.open[-1:]}")

    def handle_data(self, data: str) -> None:
        if "svg" not in self.open and "style" not in self.open:
            self.words.append(data)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                if value in self.ids:
                    self.faults.append(f"id {value!r} stands twice")
                self.ids.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")
        # A <p> ends where a block begins, whatever the page says.
        if "p" in self.open and tag in ("p", "ul", "dl", "table", "div", "figure", "details"):
            self.faults.append(f"<{tag}> inside <p> at {self.getpos()}")
        self.images += tag in ("img", "svg")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def broken_links(page: Path, reader: Reader) -> list[str]:
    """Relative links to nothing, and fragments that no element has."""
    broken = []
    for link in reader.links:
        if link.startswith("#"):
            broken += [] if link[1:] in reader.ids else [link]
        elif not link.startswith(("data:", "https:", "http:")) and not (page.parent / unquote(link)).is_file():
            broken.append(link)
    return broken
