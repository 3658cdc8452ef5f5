"""Reading a page as strictly as a test needs: every element is closed where it should be, no id stands twice."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """`links`: all href and src; `loaded`: those that a browser fetches unasked; `faults`: what is wrong; `words`: the
    text outside of pictures and styles; `styles`: that of styles; `unsourced`: pictures and tables after which no link
    to a file of theirs comes before the next one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.styles = ""
        self.unsourced: list[str] = []
        self._source_wanted = ""
        self.faults: list[str] = []
        self.words: list[str] = []
        self.images = 0
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self.open]
        self._want_source("")

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
        if "style" in self.open:
            self.styles += data
        elif "svg" not in self.open:
            self.words.append(data)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                if value in self.ids:
                    self.faults.append(f"id {value!r} stands twice")
                self.ids.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")
                if tag != "a" and not (value or "").startswith("#"):  # a picture's own parts
                    self.loaded.append(value or "")
        # A <p> ends where a block begins, whatever the page says.
        if "p" in self.open and tag in ("p", "ul", "dl", "table", "div", "figure", "details"):
            self.faults.append(f"<{tag}> inside <p> at {self.getpos()}")
        self.images += tag in ("img", "svg")
        self._follow_sources(tag, dict(attrs))

    def _follow_sources(self, tag: str, attrs: dict[str, str | None]) -> None:
        if tag in ("svg", "table") and attrs.get("class") != "words":
            self._want_source(f"<{tag}> at {self.getpos()}")
        elif tag == "a" and not (attrs.get("href") or "#").startswith("#"):
            self._source_wanted = ""

    def _want_source(self, what: str) -> None:
        # Tables of one kind, a group for each shape, stand above one link.
        if self._source_wanted and not (what.startswith("<table") and self._source_wanted.startswith("<table")):
            self.unsourced.append(self._source_wanted)
        self._source_wanted = what

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def broken_links(page: Path, reader: Reader) -> list[str]:
    """Relative links to nothing or out of the page's folder, and fragments that no element has."""
    folder = page.parent.resolve()
    broken = []
    for link in reader.links:
        if link.startswith("#"):
            broken += [] if link[1:] in reader.ids else [link]
        elif not link.startswith(("data:", "https:", "http:")):
            path = (folder / unquote(link)).resolve()
            if not path.is_file() or not path.is_relative_to(folder):
                broken.append(link)
    return broken
