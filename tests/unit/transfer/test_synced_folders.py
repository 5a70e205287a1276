"""Files and folders that a commit syncs before a manifest may name them."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from midstream_host.copy.session import commit
from midstream_host.copy.staging import Stage, sync_objects


def test_objects_and_all_folders_above_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [{"path": path, "size": 3} for path in ("a/b/c/one", "a/b/two", "d/three", "four")]
    for each in objects:
        path = tmp_path / str(each["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"abc")
    (tmp_path / "other").mkdir()
    synced: list[str] = []
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    monkeypatch.setattr(os, "fsync", recorded)
    sync_objects(str(tmp_path), objects)  # pyright: ignore[reportArgumentType]
    assert sorted(synced) == sorted([".", "a", "a/b", "a/b/c", "d", *(str(each["path"]) for each in objects)])


def test_folder_around_the_tree_is_synced_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy may have created the tree's folder, and its name is an entry of the one above."""
    synced: list[str] = []
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", recorded)
    stage = Stage(str(tmp_path / "checkpoints" / "step-1-a001"), "generation")
    stage.enter()
    commit(stage, "manifest.json", "{}", [])
    stage.leave()
    assert synced[-2:] == [stage.directory, str(tmp_path / "checkpoints")]
    assert (tmp_path / "checkpoints" / "step-1-a001" / "manifest.json").read_text() == "{}"


def test_syncs_that_wait_are_done_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [{"path": f"{number}", "size": 3} for number in range(400)]
    for each in objects:
        (tmp_path / str(each["path"])).write_bytes(b"abc")
    synced: list[str] = []
    threads: set[int] = set()

    def slow(descriptor: int) -> None:
        time.sleep(0.01)
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        threads.add(threading.get_ident())

    monkeypatch.setattr(os, "fsync", slow)
    sync_objects(str(tmp_path), objects)  # pyright: ignore[reportArgumentType]
    assert sorted(synced) == sorted([".", *(str(each["path"]) for each in objects)])
    assert len(threads) > 2


def test_object_of_another_size_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(ValueError, match="no longer 4 bytes"):
        sync_objects(str(tmp_path), [{"path": "a", "size": 4, "sha256": "", "crc32c": ""}])  # pyright: ignore


def test_folder_that_cannot_be_synced_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"abc")
    sync = os.fsync

    def broken(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "the disk is broken")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="the disk is broken"):
        sync_objects(str(tmp_path), [{"path": "a/b", "size": 3, "sha256": "", "crc32c": ""}])  # pyright: ignore
