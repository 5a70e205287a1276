"""A tree of objects, looked at on the machine where it lies: its manifest, and whether the objects are what it says.

A tree is a directory with a manifest whose ``objects`` name every file, its size and its SHA-256. The streaming
programs (``survey``, ``verify``) write one JSON object a line.
"""

from __future__ import annotations

import os
import posixpath
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from midstream.remote.copy.object_files import BLOCK, HASHERS, INCOMING, emit, end_with_operator, file_sha256
from midstream.remote.verify import objects as objects_of
from midstream.remote.verify.objects import check, checked
from midstream_engine import records

__all__ = ["BLOCK", "HASHERS", "INCOMING", "check", "checked", "emit", "end_with_operator", "file_sha256"]


def read_manifest(directory: str, name: str) -> Tuple[str, Dict[str, Any], List[Dict[str, Any]]]:
    """Text, value and objects of a tree's manifest. RecordError where it is absent or of another shape."""
    try:
        return objects_of.read_manifest(directory, name)
    except objects_of.NoTree as error:
        raise records.RecordError(str(error)) from None


def manifest_value(directory: str, manifest: str) -> Dict[str, Any]:
    """The manifest's value, read and looked over; no object is."""
    return read_manifest(directory, manifest)[1]


def survey(directory: str, objects: Sequence[Dict[str, Any]]) -> int:
    """Which objects lie there with the right hash. Lines: ``checked`` with ``path``, ``bytes`` and ``right``."""
    end_with_operator()
    for entry, wrong in checked(directory, objects):
        emit("checked", path=entry["path"], bytes=entry["size"], right=wrong is None)
    emit("done")
    return 0


def verify(directory: str, manifest: str) -> int:
    """Every object against size and hash, and a checkpoint's root digest from the bytes that were read. Lines: ``tree``
    with ``bytes`` and ``objects``, ``checked`` with ``path``, ``bytes`` and ``wrong``; at the end ``verified``."""
    end_with_operator()
    try:
        _, value, objects = read_manifest(directory, manifest)
    except records.RecordError as error:
        emit("problem", kind="manifest", message=str(error))
        return 1
    emit("tree", bytes=sum(entry["size"] for entry in objects), objects=len(objects))
    wrong_paths = set()
    for entry, wrong in checked(directory, objects):
        if wrong is not None:
            wrong_paths.add(entry["path"])
        emit("checked", path=entry["path"], bytes=entry["size"], wrong=wrong)
    extra = sorted(set(_files(directory)) - {entry["path"] for entry in objects} - {manifest})
    digest: Optional[str] = None
    problems: List[List[str]] = []
    if value.get("format") == records.FORMAT:
        try:
            digest = _root_digest(directory, records.Manifest.from_json(value, manifest), wrong_paths)
        except (records.RecordError, FileNotFoundError, KeyError) as error:
            problems.append([manifest, "its root digest cannot be recomputed: {}".format(error)])
        else:
            if digest != value["root_digest"]:
                problems.append([manifest, "root digest is {}, it says {}".format(digest, value["root_digest"])])
    recorded = value["root_digest"] if value.get("format") == records.FORMAT else None
    emit("verified", extra=extra, recorded=recorded, recomputed=digest, problems=problems)
    return 0


def _root_digest(directory: str, manifest: records.Manifest, wrong: Set[str]) -> str:
    """From the measured hashes: an object that is not what the manifest says has none."""
    sha256 = {entry.path: entry.sha256 for entry in manifest.object_entries if entry.path not in wrong}
    train = records.read_json(posixpath.join(directory, records.TRAIN))
    lost = sorted({path for array in manifest.array_entries for path in array.objects} - set(sha256))
    if lost:
        raise records.RecordError("{} is missing or corrupt".format(lost[0]))
    return records.root_digest(manifest.array_entries, sha256, train["state"])


def _files(directory: str) -> Iterator[str]:
    """Paths of all files below ``directory``, relative to it."""
    for parent, _, names in os.walk(directory):
        for name in names:
            yield posixpath.relpath(posixpath.join(parent, name), directory)


def store_of(root: str, run_id: str) -> Optional[str]:
    """``gs://bucket/prefix`` where the run's checkpoints lie in a bucket, None where they lie here."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    found = records.Store.read_or_none(paths.store_file)
    return found.url if found is not None else None
