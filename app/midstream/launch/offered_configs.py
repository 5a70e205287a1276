"""Configs that a launch offers: those of this directory, and midstream's own."""

from __future__ import annotations

import re
from pathlib import Path

from midstream.bundled_files import config_names

MAX_CONFIGS = 200  # files of this directory
CONFIG_SIZE = 64_000  # characters of a file that are looked at
_SECTION = re.compile(r"^(data|model|trainer|optimizer)[ \t]*:", re.MULTILINE)


def offered_configs() -> tuple[str, ...]:
    """Return the paths of this directory's configs and the names of midstream's."""
    paths = sorted(path for pattern in ("*.yaml", "*/*.yaml") for path in Path().glob(pattern))
    own = [str(path) for path in paths[:MAX_CONFIGS] if _has_section(path)]
    return tuple(dict.fromkeys([*own, *config_names()]))


def _has_section(path: Path) -> bool:
    """Return whether a YAML file has a section of a config; a fleet file has none."""
    try:
        with path.open(errors="replace") as file:
            return _SECTION.search(file.read(CONFIG_SIZE)) is not None
    except OSError:
        return False
