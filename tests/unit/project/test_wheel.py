"""The wheel: man page, git commit, bundled files; built as an installer would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from midstream import __version__
from support.paths import REPOSITORY


def test_wheel_has_man_page_commit_and_bundled_files(tmp_path: Path) -> None:
    if not shutil.which("git") or not (REPOSITORY / ".git").exists():
        pytest.skip("no clone: git clone the repository")
    commit = subprocess.run(
        ["git", "-C", REPOSITORY, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.iterdir()  # the hook leaves no file
    with zipfile.ZipFile(wheel) as archive:
        page = archive.read(f"midstream-{__version__}.data/data/share/man/man1/midstream.1")
        assert page == (REPOSITORY / "docs/reference/midstream.1").read_bytes()
        archive.extractall(tmp_path / "installed")
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "midstream", "--version"], check=True, capture_output=True, text=True, cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
    ).stdout  # fmt: skip
    assert shown.strip() in {f"midstream {__version__} (commit {commit}{more})" for more in ("", ", changed")}
    assert (tmp_path / "installed/midstream/_shipped/configs/gpt2_nano.yaml").is_file()
