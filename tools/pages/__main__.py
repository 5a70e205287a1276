"""Command that writes the pages that are made from the program.

Usage: ``make pages``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from midstream.tui import commands
from pages import (
    cli_page,
    configuration_page,
    events_page,
    filters_page,
    fleet_page,
    imports_table,
    levanter_page,
    man_page,
    messages_page,
    neox_arguments_page,
)
from pages.markdown import replaced

FIELDS = "tests/fixtures/levanter/fields.json"  # of the configuration guide and of several releases


def pages(docs: Path) -> dict[Path, str]:
    """Return path -> text of each page.

    The hand-written parts are read from the present pages.
    """
    found = {
        docs / "reference/keys.md": commands.document(),
        docs / "reference/json-lines.md": events_page.page(),
        docs / "reference/messages.md": messages_page.page(),
        docs / "reference/midstream.1": man_page.page(),
        docs / "reference/configuration.md": configuration_page.document(),
        docs / "reference/levanter.md": levanter_page.page(json.loads((docs.parent / FIELDS).read_text())),
        docs / "reference/neox-arguments.md": neox_arguments_page.document(),
    }
    for name, sections in (
        ("reference/cli.md", cli_page.sections()),
        ("reference/fleet-file.md", fleet_page.sections()),
        ("reference/filters.md", filters_page.sections()),
        ("explanation/architecture.md", {"imports": imports_table.table(docs.parent / "pyproject.toml")}),
    ):
        path = docs / name
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
