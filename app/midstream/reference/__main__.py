"""Command that writes the pages that are made from the program.

Usage: ``python -m midstream.reference [DOCS]``, by default ``docs``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from midstream.reference import cli_page, events_page, fleet_page, man_page
from midstream.reference.markdown import replaced
from midstream.tui import commands


def pages(docs: Path) -> dict[Path, str]:
    """Return path -> text of each page.

    The hand-written parts are read from the present pages.
    """
    found = {
        docs / "reference/keys.md": commands.document(),
        docs / "reference/json-lines.md": events_page.page(),
        docs / "reference/midstream.1": man_page.page(),
    }
    for name, sections in (("cli.md", cli_page.sections()), ("fleet-file.md", fleet_page.sections())):
        path = docs / "reference" / name
        text = path.read_text(encoding="utf-8")
        for section, content in sections.items():
            text = replaced(text, section, content)
        found[path] = text
    return found


def main(arguments: list[str]) -> int:
    """Write the pages that differ."""
    for path, text in pages(Path(arguments[0] if arguments else "docs")).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
