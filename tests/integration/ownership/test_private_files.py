"""Modes of files that may have secrets, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.runs import attempts, run_state
from support.launched_processes import kill_launched
from support.local_fleet import Fleet


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_only_its_owner_enters_the_state_directory(
    umask: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "new" / "state"))
    fleet = Fleet(tmp_path, capsys, "here")
    assert fleet("--status")[0] == 0
    assert mode(tmp_path / "new" / "state") == 0o700
    wide = tmp_path / "of an earlier version"
    wide.mkdir(mode=0o755)
    monkeypatch.setenv("MIDSTREAM_STATE", str(wide))
    assert fleet("--status")[0] == 0
    assert mode(wide) == 0o700


def test_logs_and_config_of_a_run_are_its_owners(umask: None, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    paths = records.RunPaths(root, "r")
    os.makedirs(paths.attempts)  # by an earlier version
    number = run_state.claim_attempt(root, "r")
    try:
        attempts.start(root, "r", number, ["sh", "-c", "echo token"], {}, config="a: 1\n")
        assert mode(paths.attempts) == 0o700
        assert mode(paths.attempt(number).log()) == 0o600
        assert mode(paths.config) == 0o600
    finally:
        kill_launched(Path(root))
