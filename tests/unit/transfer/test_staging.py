"""Staging directories that several programs enter and leave."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from midstream_host.copy import staging
from midstream_host.copy.staging import Stage
from midstream_host.copy_items import CopyObject
from midstream_host.object_files import LastFolder

ENTRY: CopyObject = {"path": "object", "size": 1, "sha256": "0" * 64}


@pytest.mark.parametrize("later_copy", [False, True])
def test_directory_is_entered_as_others_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_copy: bool
) -> None:
    """Two streams of one copy: the first is over while the second opens the lock."""
    first, second = Stage(str(tmp_path), "f00d"), Stage(str(tmp_path), "f00d")
    first.enter()
    real = fcntl.flock

    def lock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(staging.fcntl, "flock", real)
        first.leave()
        if later_copy:
            Stage(str(tmp_path), "beef").adopt([])
        real(descriptor, operation)

    monkeypatch.setattr(staging.fcntl, "flock", lock)
    second.place("object", b"1", folder := LastFolder(str(tmp_path)))
    assert (tmp_path / "object").read_bytes() == b"1"
    assert Path(second.part(ENTRY)).parent.is_dir()
    folder.close()
    second.leave()
    assert not Path(second.incoming).exists()
