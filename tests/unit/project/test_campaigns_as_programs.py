"""Each campaign that the documentation names starts as a program, without pytest."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/campaigns/README.md").read_text(encoding="utf-8")
PROGRAMS = sorted(set(re.findall(r"`python (tests/[\w/]+\.py)", PAGE)))


def test_the_page_names_campaigns() -> None:
    assert len(PROGRAMS) > 10


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("program", PROGRAMS)
def test_campaign_starts_as_a_program(program: str) -> None:
    done = subprocess.run([sys.executable, program, "--help"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
