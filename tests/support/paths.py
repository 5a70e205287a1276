"""Folders of the repository that tests read, wherever in it the test is."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FIXTURES = TESTS / "fixtures"
REPOSITORY = TESTS.parent
CONFIGS = REPOSITORY / "configs"
