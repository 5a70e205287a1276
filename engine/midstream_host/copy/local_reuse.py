"""Reuse of objects that another tree of the host has, by a link or a local copy.

An object is never written in place, so trees may share one file by hard links. Symbolic links are not followed; the
inode that was hashed is the one that is linked.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import posixpath
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

from midstream_host.copy.staging import SLACK, Stage, free_bytes
from midstream_host.copy_items import CopyObject
from midstream_host.object_files import BLOCK, HASHERS, descriptor_sha256, inside, open_object, open_plain

MANIFEST = "manifest.json"
MANIFESTS = 256  # trees that are searched for objects, the newest ones


def _elsewhere(root: str, directory: str, hashes: Set[Tuple[str, int]]) -> Dict[Tuple[str, int], List[Tuple[str, str]]]:
    """Find objects of other trees: (sha256, size) -> [(tree, path)].

    The hashes are those of the manifests; each object is hashed before it is used.
    """
    manifests: List[Tuple[float, str]] = []
    for pattern in ("runs/*/checkpoints/*", "data/*"):
        for path in glob.glob(posixpath.join(glob.escape(root), pattern, MANIFEST)):
            with contextlib.suppress(OSError):
                manifests.append((os.stat(path).st_mtime, path))
    places: Dict[Tuple[str, int], List[Tuple[str, str]]] = {}
    for _, path in sorted(manifests, reverse=True)[:MANIFESTS]:
        parent = posixpath.dirname(path)
        if posixpath.realpath(parent) == posixpath.realpath(directory):
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a damaged tree is left out
            with open(path, encoding="utf-8") as file:
                entries = json.load(file)["objects"]
            for entry in entries:
                key = (entry["sha256"], entry["size"])
                if key in hashes and _spelled(entry["path"]):
                    places.setdefault(key, []).append((parent, entry["path"]))
    return places


def _matching_inode(directory: str, path: str, sha256: str) -> Optional[int]:
    """Inode of an object if it has this hash, else None."""
    descriptor = open_object(directory, path)
    try:
        return os.fstat(descriptor).st_ino if descriptor_sha256(descriptor) == sha256 else None
    finally:
        os.close(descriptor)


def _copied(directory: str, path: str, target: str) -> str:
    """Copy an object and return the SHA-256 of the bytes that were written."""
    digest = hashlib.sha256()
    view = memoryview(bytearray(BLOCK))
    created = open_plain(target, target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(created, "wb") as writing, os.fdopen(open_object(directory, path), "rb", buffering=0) as reading:
        while True:
            count = reading.readinto(view)
            if not count:
                return digest.hexdigest()
            digest.update(view[:count])
            writing.write(view[:count])


def _spelled(path: str) -> bool:
    try:
        return bool(inside("", path))
    except ValueError:
        return False


def reuse(stage: Stage, root: str, absent: Sequence[CopyObject]) -> Iterator[str]:
    """Link or copy objects, hashed first, from another local tree; return their paths."""
    places = _elsewhere(root, stage.directory, {(entry["sha256"], entry["size"]) for entry in absent})
    if not places:
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and most targets have nothing to reuse

    os.makedirs(stage.directory, exist_ok=True)

    def reused(entry: CopyObject) -> Optional[str]:
        part = stage.part(entry) + ".held"
        for parent, path in places.get((entry["sha256"], entry["size"]), ())[:3]:
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
                try:
                    inode = _matching_inode(parent, path, entry["sha256"])
                    if inode is None:
                        continue
                    os.link(inside(parent, path), part, follow_symlinks=False)
                    if os.lstat(part).st_ino != inode:
                        continue
                except OSError as error:
                    if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                        continue
                    fits = free_bytes(stage.directory) > entry["size"] + SLACK
                    if not fits or _copied(parent, path, part) != entry["sha256"]:
                        continue
                stage.name(part, entry["path"])
                with contextlib.suppress(FileNotFoundError):  # a part of an earlier copy
                    os.unlink(stage.part(entry))
                return entry["path"]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        return None

    with ThreadPoolExecutor(HASHERS) as pool:
        yield from (path for path in pool.map(reused, absent) if path is not None)
