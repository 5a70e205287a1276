"""Pages of the documentation: their fenced blocks, and the marks that say how a test runs them.

A block marked ``sh`` is run from the page's own text, in the order of the page. An HTML comment on the line before it
changes that: ``<!-- not run: REASON -->``, or ``<!-- run with NAME=VALUE -->`` (an empty value removes the variable).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from support.paths import REPOSITORY

LANGUAGES = {"sh", "text", "yaml", "json", "python"}
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
_RUN_WITH = re.compile(r"<!-- run with (\w+)=(\S*) -->")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    not_run: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page: the site's, and those beside it in the repository's root."""
    top = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
    return top + sorted((REPOSITORY / "docs").rglob("*.md"))


def blocks(page: Path) -> list[Block]:
    """Return the page's fenced blocks, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    name = str(page.relative_to(REPOSITORY))
    inside: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if inside is None:
            inside = number
            continue
        mark = lines[inside - 1] if inside else ""
        reason, variable = _NOT_RUN.fullmatch(mark), _RUN_WITH.fullmatch(mark)
        found.append(
            Block(
                name,
                inside + 2,
                lines[inside].removeprefix("```"),
                "\n".join(lines[inside + 1 : number]),
                reason[1] if reason else "",
                ((variable[1], variable[2]),) if variable else (),
            )
        )
        inside = None
    assert inside is None, f"{name}:{inside}: a block without an end"
    return found
