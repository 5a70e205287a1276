"""Elements of HTML whose texts are escaped: hosts, runs and files are not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from midstream.counts import count
from midstream.printable import printable

MAX_ROWS = 1000  # of a table: a host may report a lineage of any length


def text(value: object) -> str:
    """Return a value as escaped text without control characters."""
    return escape(printable(str(value)))


def element(tag: str, *children: str, name: str = "", kind: str = "") -> str:
    """Return an element; its children are HTML already.

    Args:
        tag: Name of the element.
        children: What is in it, as HTML.
        name: Its id; empty for none.
        kind: Its class; empty for none.
    """
    words = [tag, *([f'id="{text(name)}"'] if name else []), *([f'class="{text(kind)}"'] if kind else [])]
    return f"<{' '.join(words)}>{''.join(children)}</{tag}>"


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph of text."""
    return element("p", text(words), kind=kind)


def items(lines: Iterable[str]) -> str:
    """Return lines of text as a list; nothing without lines."""
    entries = [element("li", text(line)) for line in lines]
    return element("ul", *entries) if entries else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return (name, value) pairs as a table, without those that have no value."""
    rows = [element("tr", f'<th scope="row">{text(name)}</th>', _cell("td", value)) for name, value in pairs if value]
    return element("table", *rows, kind="facts")


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, of its first `MAX_ROWS` rows."""
    head = element("tr", *(f'<th scope="col">{text(name)}</th>' for name in heading))
    body = [element("tr", *(_cell("td", cell) for cell in row)) for row in rows[:MAX_ROWS]]
    more = len(rows) - MAX_ROWS
    note = paragraph(f"{count(more, 'row')} more", "dim") if more > 0 else ""
    return element("table", element("thead", head), element("tbody", *body)) + note


def _cell(tag: str, value: str) -> str:
    return element(tag, "<br>".join(map(text, value.split("\n"))))
