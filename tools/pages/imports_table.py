"""The table of who may import what, from import-linter's contracts in pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pages import markdown


def table(pyproject: Path) -> str:
    """Return a table with a row for each contract."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    return markdown.table(("rule", "packages"), [(contract["name"], _packages(contract)) for contract in contracts])


def _packages(contract: dict[str, Any]) -> str:
    if contract["type"] == "layers":
        layers = (_names([name.strip() for name in layer.split("|")]) for layer in contract["layers"])
        return f"{' → '.join(layers)}; each may import those after it"
    if contract["type"] == "forbidden":
        return f"{_names(contract['source_modules'])} without {_names(contract['forbidden_modules'])}"
    return _names(contract["ancestors"])


def _names(modules: list[str]) -> str:
    return ", ".join(f"`{name.removeprefix('midstream.')}`" for name in modules)
