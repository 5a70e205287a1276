"""Whether a mounted file system keeps the promises that a commit stands on.

A bucket behind a mount (gcsfuse, s3fs, ...) copies where a file system renames, and a directory there is a prefix: a
reader can see half of it, and a writer that is killed leaves that for good. Checkpoints go into such a bucket through
``gs://`` instead, where creating an object is atomic.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.records import sync_directory

MOUNTS = "/proc/self/mounts"
# Types of FUSE file systems (``fuse.NAME``) that are buckets, and the sources by which those of type ``fuse`` are told.
BUCKETS = ("gcsfuse", "s3fs", "goofys", "mountpoint-s3", "geesefs", "rclone", "blobfuse", "blobfuse2", "ossfs", "riofs")

_proven: set[int] = set()  # devices that were probed and do what is needed


def check_mount(directory: str) -> None:
    """CheckpointError, naming the alternative, unless a file can be replaced and claimed atomically in ``directory``,
    which exists. Probed once a file system and process."""
    kind = bucket_of(directory)
    if kind:
        raise _refusal(directory, f"it lies on {kind}: a bucket behind a mount")
    device = os.stat(directory).st_dev
    if device in _proven:
        return
    flaw = probe(directory)
    if flaw:
        raise _refusal(directory, flaw)
    _proven.add(device)


def bucket_of(directory: str, table: str | None = None) -> str:
    """The kind of bucket that is mounted where ``directory`` lies; empty where it is none that is known."""
    mounted = _mount_of(os.path.realpath(directory), table or _mounts())
    if mounted is None:
        return ""
    source, kind = mounted
    name = kind.removeprefix("fuse.")
    if kind.startswith("fuse") and (name in BUCKETS or source.split(":")[0].split("#")[0] in BUCKETS):
        return name if name in BUCKETS else source
    return ""


def probe(directory: str) -> str:
    """What the file system of ``directory`` does not do that a commit needs; empty where it does all."""
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
            return "a file that is there can be created again"
        inode = os.stat(second).st_ino
        os.replace(second, first)
        sync_directory(directory)
        with open(first, "rb") as file:
            if file.read() != b"new":
                return "a renamed file does not have its contents"
        if os.path.exists(second):
            return "a renamed file is still there under its old name"
        if os.stat(first).st_ino != inode:
            return "a renamed file is another one: it was copied"
    except OSError as error:
        return f"{error.strerror or error} while a file was created, synced and renamed"
    finally:
        for path in (first, second):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return ""


def _refusal(directory: str, flaw: str) -> CheckpointError:
    return CheckpointError(
        f"{directory}: no checkpoint can be committed there: {flaw}; "
        "use a file system of the host, NFS or the like, or trainer.checkpointer.base_path: gs://BUCKET/PREFIX"
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
    return ""  # no Linux: what a file system does is probed anyway


def _mount_of(path: str, table: str) -> tuple[str, str] | None:
    """(source, type) of the mount that ``path`` lies on; of two at the same place the later one."""
    found: tuple[int, str, str] | None = None
    for line in table.splitlines():
        source, place, kind, *_ = [*line.split(" "), "", "", ""]
        place = place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and (found is None or len(place) >= found[0]):
            found = len(place), source, kind
    return found[1:] if found else None
