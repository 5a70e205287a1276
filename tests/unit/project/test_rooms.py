"""Imports of core and host: the standard library alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from support.paths import REPOSITORY

ENGINE = REPOSITORY / "engine"
# Packages that a module of core or host imports, with the reason.
EXCEPTIONS = {
    ("midstream_core/object_store/gcs_errors.py", "google"): "where an error of Google's client is in hand",
    ("midstream_core/object_store/gcs_errors.py", "requests"): "the same",
    ("midstream_core/yaml_includes.py", "yaml"): "for the app and the engine: no program on hosts reads YAML with it",
}
MAY = {"midstream_core": {"midstream_core"}, "midstream_host": {"midstream_core", "midstream_host"}}


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports, wherever the import is."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("package", MAY)
def test_packages_for_hosts_need_the_standard_library_alone(package: str) -> None:
    found = {
        (str(path.relative_to(ENGINE)), name)
        for path in (ENGINE / package).rglob("*.py")
        for name in imported(path) - MAY[package] - set(sys.stdlib_module_names)
    }
    assert found == {key for key in EXCEPTIONS if key[0].startswith(package)}
