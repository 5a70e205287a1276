"""Markdown of generated pages: cells, tables, and replaced sections of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

# What is set as code where a text names it. The text of a flag is also that of --help, which has no marks.
_CODE = re.compile(
    r"(?<![`\w/-])(--[a-z][a-z-]*(?: (?:[A-Z][A-Z:|]*[A-Z](?:\[,[A-Z.]+\])?))?|~/[\w./-]+[\w]|\$[A-Z_]+|HOST:PATH|(?:gs|s3)://(?![\w])"
    r"|midstream --[a-z-]+(?: [A-Z]+)?)(?![`\w-])"
)

_CODE_WITH_BAR = re.compile(r"`([^`]*\|[^`]*)`")


def marked(text: str) -> str:
    """Return a text with flags, paths and variables as code."""
    return _CODE.sub(r"`\1`", text)


def cell(text: str) -> str:
    """Return the text of a table's cell.

    A bar in code is an entity in an element: no sign of escape serves all programs that show Markdown.
    """
    return _CODE_WITH_BAR.sub(_code_element, text).replace("|", "\\|")


def _code_element(match: re.Match[str]) -> str:
    return f"<code>{escape(match[1]).replace('|', '&#124;')}</code>"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |".replace("|  |", "| |") for line in lines) + "\n"


def replaced(page: str, name: str, content: str) -> str:
    """Return a page with one section replaced.

    The section is between its comments ``made: NAME`` and ``end``.

    Raises:
        ValueError: The page has no such comments.
    """
    begin = f"<!-- made: {name} -->\n"
    if begin not in page:
        raise ValueError(f"the page has no line {begin.strip()}")
    before, rest = page.split(begin, 1)
    end = "<!-- end -->"
    if end not in rest:
        raise ValueError(f"no line {end} after {begin.strip()}")
    return f"{before}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"
