"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """An empty run directory below ``tmp_path``."""
    return RunDirectory(tmp_path)
