"""File systems that cannot commit a checkpoint are refused with a hint."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import RunPaths
from midstream_engine.checkpoint.stores import mounts
from midstream_engine.checkpoint.stores.mounts import bucket_of, probe
from support.checkpoints.checkpoint_states import plain_state, save

TABLE = """\
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
nas:/export /mnt/nas nfs4 rw,vers=4.2 0 0
my-bucket /mnt/gcs fuse.gcsfuse rw,nosuid 0 0
s3fs /mnt/with\\040space fuse.s3fs rw 0 0
mountpoint-s3 /mnt/s3 fuse rw 0 0
gdrive:runs /mnt/rclone fuse.rclone rw 0 0
me@host:/data /mnt/sshfs fuse.sshfs rw 0 0
/dev/vdb /mnt/gcs/inner ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/mnt/gcs", "gcsfuse"),
        ("/mnt/gcs/runs/a/checkpoints", "gcsfuse"),
        ("/mnt/with space/runs", "s3fs"),
        ("/mnt/s3/x", "mountpoint-s3"),
        ("/mnt/rclone", "rclone"),
        ("/mnt/gcs/inner/x", ""),  # another file system, mounted inside
        ("/mnt/gcs-not", ""),
        ("/mnt/nas/runs", ""),
        ("/mnt/sshfs/runs", ""),  # a file system behind FUSE, whose renames are real
        ("/home/me", ""),
    ],
)
def test_mounted_bucket_is_detected_from_mount_table(path: str, kind: str) -> None:
    assert bucket_of(path, TABLE) == kind


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_suitable", set())


def refused(tmp_path: Path, *words: str) -> None:
    """Check that a save is refused in one line with these words, and leaves nothing."""
    paths = RunPaths(str(tmp_path / "root"), "run")
    with pytest.raises(CheckpointError) as caught:
        save(paths, plain_state())
    assert "\n" not in str(caught.value)
    for word in (*words, "trainer.checkpointer.base_path: gs://BUCKET/PREFIX"):
        assert word in str(caught.value)
    assert os.listdir(paths.checkpoints) == []


@pytest.mark.usefixtures("unproven")
def test_save_into_mounted_bucket_is_refused_with_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nmy-bucket {os.path.realpath(tmp_path)} fuse.gcsfuse rw 0 0\n")
    monkeypatch.setattr(mounts, "MOUNTS", str(table))
    refused(tmp_path, "it is on gcsfuse, a mounted bucket")


@pytest.mark.usefixtures("unproven")
def test_file_system_with_copying_rename_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: str, target: str) -> None:
        keep = f"{target}-new"
        shutil.copyfile(source, keep)  # an inode of its own, before the old one is free
        os.unlink(target)
        os.rename(keep, target)
        os.unlink(source)

    monkeypatch.setattr(mounts.os, "replace", copy)
    refused(tmp_path, "a renamed file has another inode: it was copied")


@pytest.mark.usefixtures("unproven")
def test_file_system_without_exclusive_create_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.open
    monkeypatch.setattr(
        mounts.os, "open", lambda path, flags, *mode, **more: original(path, flags & ~os.O_EXCL, *mode, **more)
    )
    refused(tmp_path, "an existing file can be created again")


@pytest.mark.usefixtures("unproven")
def test_file_system_without_sync_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(mounts.os, "fsync", fail)
    refused(tmp_path, "Input/output error while a file was created, synced and renamed")


@pytest.mark.usefixtures("unproven")
def test_sound_file_system_is_probed_once_without_residue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []
    monkeypatch.setattr(mounts, "probe", lambda directory: probed.append(directory) or probe(directory))
    paths = RunPaths(str(tmp_path / "root"), "run")
    for step in (1, 2, 3):
        save(paths, plain_state(), step=step)
    assert probed == [paths.checkpoint("step-1-a001")]
    assert not [path for path in tmp_path.rglob("*") if "probe" in path.name]
