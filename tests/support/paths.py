"""Folders of the repository that tests read, wherever in it the test is."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FIXTURES = TESTS / "fixtures"
REPOSITORY = TESTS.parent
CONFIGS = REPOSITORY / "configs"
if (TOOLS := str(REPOSITORY / "tools")) not in sys.path:  # a campaign runs as a program, without pytest's settings
    sys.path.append(TOOLS)
