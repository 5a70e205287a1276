"""Fixtures of the tests of other trainers' files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import FIXTURES
from support.trainers.checkpoint_cases import Case


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Case], Path]:
    """Copy a case's checkpoint, with what is beside it, into a directory; return the checkpoint's path there."""

    def make(case: Case) -> Path:
        source = FIXTURES / case.run
        shutil.copytree(source, tmp_path / "run")
        return tmp_path / "run" / case.path

    return make
