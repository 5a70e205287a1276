"""Checks that a mounted file system has the guarantees that a commit needs.

A mounted bucket (gcsfuse, s3fs, ...) copies where a file system renames, and a directory there is a prefix: a reader
can see a part of it, and a writer that is killed leaves that part. Such a bucket takes checkpoints through its URL,
where creating an object is atomic.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import sync_directory

MOUNTS = "/proc/self/mounts"
# Types of FUSE file systems (``fuse.NAME``) that are buckets, and sources of those whose type is ``fuse`` alone.
BUCKETS = ("gcsfuse", "s3fs", "goofys", "mountpoint-s3", "geesefs", "rclone", "blobfuse", "blobfuse2", "ossfs", "riofs")

_suitable: set[int] = set()  # devices that passed the probe


def check_mount(directory: str) -> None:
    """Check that a file in ``directory`` can be replaced and created atomically.

    The directory must exist. Each file system is probed once per process.

    Raises:
        CheckpointError: The file system is not suitable; the message names the alternative.
    """
    kind = bucket_of(directory)
    if kind:
        raise _unsuitable(directory, f"it is on {kind}, a mounted bucket")
    device = os.stat(directory).st_dev
    if device in _suitable:
        return
    flaw = probe(directory)
    if flaw:
        raise _unsuitable(directory, flaw)
    _suitable.add(device)


def bucket_of(directory: str, table: str | None = None) -> str:
    """Return the kind of mounted bucket that ``directory`` is on; empty for none."""
    mounted = _mount_of(os.path.realpath(directory), table or _mounts())
    if mounted is None:
        return ""
    source, kind = mounted
    name = kind.removeprefix("fuse.")
    if kind.startswith("fuse") and (name in BUCKETS or source.split(":")[0].split("#")[0] in BUCKETS):
        return name if name in BUCKETS else source
    return ""


def probe(directory: str) -> str:
    """Return what the file system of ``directory`` lacks for a commit; empty: nothing."""
    stem = os.path.join(directory, f".probe-{os.getpid()}-{secrets.token_hex(4)}")
    first, second = f"{stem}-a", f"{stem}-b"
    try:
        for path, text in ((first, b"old"), (second, b"new")):
            _create(path, text)
        try:
            _create(first, b"again")
        except FileExistsError:
            pass
        else:
            return "an existing file can be created again"
        inode = os.stat(second).st_ino
        os.replace(second, first)
        sync_directory(directory)
        with open(first, "rb") as file:
            if file.read() != b"new":
                return "a renamed file does not have its contents"
        if os.path.exists(second):
            return "a renamed file still exists under its old name"
        if os.stat(first).st_ino != inode:
            return "a renamed file has another inode: it was copied"
    except OSError as error:
        return f"{error.strerror or error} while a file was created, synced and renamed"
    finally:
        for path in (first, second):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return ""


def _unsuitable(directory: str, flaw: str) -> CheckpointError:
    return CheckpointError(
        f"{directory}: no checkpoint can be committed there: {flaw} (hint: "
        "use a file system of the host or NFS, or trainer.checkpointer.base_path: gs://BUCKET/PREFIX or s3://BUCKET/PREFIX)"
    )


def _create(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mounts() -> str:
    with contextlib.suppress(OSError), open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
    return ""  # not Linux: the probe decides


def _mount_of(path: str, table: str) -> tuple[str, str] | None:
    """Return (source, type) of the mount that ``path`` is on, the latest if several."""
    mount: tuple[int, str, str] | None = None
    for line in table.splitlines():
        source, target, kind, *_ = [*line.split(" "), "", "", ""]
        target = target.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = path == target or path.startswith(target.rstrip("/") + "/")
        if inside and (mount is None or len(target) >= mount[0]):
            mount = len(target), source, kind
    return mount[1:] if mount else None
