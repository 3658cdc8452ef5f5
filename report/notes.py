"""What a person writes beside a comparison, DIR/notes.md: paragraphs, headings, lists, links, emphasis."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt

NOTES = "notes.md"
# Their headings stand below those of the page's sections.
SHIFT = 2


def render(folder: Path) -> str:
    """HTML, without images or HTML of its own; "" where there are no notes. ValueError of one line if unreadable."""
    path = folder / NOTES
    if not path.exists():
        return ""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    markdown = MarkdownIt("commonmark", {"html": False}).disable("image")
    tokens = markdown.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + SHIFT)}"
    return markdown.renderer.render(tokens, markdown.options, {})
