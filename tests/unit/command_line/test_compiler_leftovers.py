"""`--clean` lists what comparisons have installed on this machine, and removes it once that was agreed to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from midstream.check.compiler_leftovers import KIND, compilers_directory
from midstream.check.fleet_leftovers import FoundLeftover
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.operations.clean import clean


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the directory of compilers, with a file of 1,000 bytes."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    directory = compilers_directory()
    (directory / "engine").mkdir(parents=True)
    (directory / "engine" / "libtpu.so").write_bytes(b"x" * 1000)
    return directory


def found(agreed: list[FoundLeftover] | None = None) -> list[FoundLeftover]:
    listed = clean(HostPool(parse_fleet("hosts: {}\n")), lambda _: None, agreed=agreed)
    return [each for each in listed if isinstance(each, FoundLeftover)]


def test_compilers_are_listed_and_removed(installed: Path) -> None:
    (listed,) = found()
    assert (listed.path, listed.kind, listed.bytes, listed.kept) == (str(installed), KIND, 1000, "")
    assert installed.exists()
    (removed,) = found([listed])
    assert removed.removed
    assert not installed.exists()
    assert found() == []


def test_compilers_that_nobody_has_agreed_to_stay(installed: Path) -> None:
    (kept,) = found([])
    assert kept.kept
    assert installed.exists()


def test_compilers_of_a_running_comparison_stay(installed: Path) -> None:
    script = installed / "engine" / "compile.py"
    script.write_text("import sys; print('runs', flush=True); sys.stdin.read()\n")
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        (listed,) = found()
        assert listed.kept == "a comparison runs"
    finally:
        process.communicate()
