"""Objects that arrive in ranges: what a commit waits for, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from midstream_host.copy.range_assembly import Assemblies
from midstream_host.copy.staging import Stage
from midstream_host.copy_items import CopyObject

DATA = bytes(range(256)) * 64


def landed(directory: Path, data: bytes, ranges: list[tuple[int, int]]) -> tuple[Assemblies, CopyObject]:
    """Write ranges of an object's part as receivers do."""
    entry: CopyObject = {"path": "object", "size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    stage = Stage(str(directory), "f00d")
    Path(stage.part(entry)).write_bytes(data)
    assemblies = Assemblies(stage)
    for offset, length in ranges:
        assemblies.landed(entry, offset, length)
    return assemblies, entry


def test_commit_waits_until_ranges_are_verified(tmp_path: Path) -> None:
    assemblies, entry = landed(tmp_path, DATA, [(8192, len(DATA) - 8192), (0, 8192)])
    assert assemblies.finish()
    assert (tmp_path / entry["path"]).read_bytes() == DATA


def test_wrong_hash_is_no_commit_beside_an_older_object(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    older = DATA[::-1]  # of the same size: a commit that only looks at sizes would accept it
    (tmp_path / "object").write_bytes(older)
    assemblies, _ = landed(tmp_path, DATA[:-1] + b"?", [(0, len(DATA))])
    assert not assemblies.finish()
    assert (tmp_path / "object").read_bytes() == older
    assert [json.loads(line)["kind"] for line in capfd.readouterr().out.splitlines()] == ["hash"]


def test_range_that_never_landed_is_no_commit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assemblies, _ = landed(tmp_path, DATA, [(0, 100), (200, 100)])
    assert not assemblies.finish()
    assert "100 bytes of 16384 have landed" in json.loads(capfd.readouterr().out)["message"]
