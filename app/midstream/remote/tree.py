"""A tree of objects, looked at on the machine where it lies: its manifest, and whether the objects are what it says.

A tree is a directory with a manifest whose ``objects`` name every file, its size and its SHA-256. The streaming
programs (``survey``, ``verify``) write one JSON object a line.
"""

from __future__ import annotations

import json
import os
import posixpath
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from midstream.remote import files
from midstream.remote.files import BLOCK, HASHERS, INCOMING, emit, end_with_operator, file_sha256
from midstream_engine import records

__all__ = ["BLOCK", "HASHERS", "INCOMING", "emit", "end_with_operator", "file_sha256"]


def inside(directory: str, path: str) -> str:
    try:
        return files.inside(directory, path)
    except ValueError as error:
        raise records.RecordError(str(error)) from None


def check(directory: str, entry: Dict[str, Any]) -> Optional[str]:
    """What is wrong with one object, or None. Reads all of it."""
    path = inside(directory, entry["path"])
    try:
        size = os.stat(path).st_size
        if size != entry["size"]:
            return "{} bytes, the manifest says {}".format(size, entry["size"])
        found = file_sha256(path)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return "cannot be read: {}".format(error.strerror)
    if found != entry["sha256"]:
        return "SHA-256 is {}, the manifest says {}".format(found, entry["sha256"])
    return None


def checked(directory: str, objects: Iterable[Dict[str, Any]]) -> Iterator[Tuple[Dict[str, Any], Optional[str]]]:
    """Each object with what is wrong with it, in the order in which the threads finish. A few are read ahead."""
    with ThreadPoolExecutor(max(2, min(HASHERS, os.cpu_count() or 1))) as pool:
        running: Dict[Future, Dict[str, Any]] = {}
        queue = iter(objects)
        while True:
            for entry in queue:
                running[pool.submit(check, directory, entry)] = entry
                if len(running) >= 4 * HASHERS:
                    break
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def read_manifest(directory: str, name: str) -> Tuple[str, Dict[str, Any], List[Dict[str, Any]]]:
    """Text, value and objects of a tree's manifest. RecordError where it is absent or of another shape."""
    try:
        with open(posixpath.join(directory, name), encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        raise records.RecordError("{}: there is no {}: not a complete tree".format(directory, name)) from None
    except ValueError as error:
        raise records.RecordError("{}/{}: not a manifest ({!r})".format(directory, name, error)) from error
    return (text, *parse_manifest(text, directory, name))


def parse_manifest(text: str, directory: str, name: str) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Value and objects of a manifest. RecordError where it is of another shape."""
    where = posixpath.join(directory, name)
    try:
        value = json.loads(text)
        objects = [
            {"path": str(entry["path"]), "size": int(entry["size"]), "sha256": str(entry["sha256"])}
            for entry in value["objects"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise records.RecordError("{}: not a manifest ({!r})".format(where, error)) from error
    for entry in objects:
        inside(directory, entry["path"])
    if len({entry["path"] for entry in objects}) != len(objects):
        raise records.RecordError("{}: names an object twice".format(where))
    return value, objects


def manifest_value(directory: str, manifest: str) -> Dict[str, Any]:
    """The manifest's value, read and looked over; no object is."""
    return read_manifest(directory, manifest)[1]


def describe(directory: str, manifest: str) -> Dict[str, Any]:
    """The tree's manifest as text, its objects, and those that are missing or of another size (not hashed)."""
    text, _, objects = read_manifest(directory, manifest)
    problems = []
    for entry in objects:
        try:
            size = os.stat(inside(directory, entry["path"])).st_size
        except FileNotFoundError:
            problems.append([entry["path"], "missing"])
            continue
        if size != entry["size"]:
            problems.append([entry["path"], "{} bytes, the manifest says {}".format(size, entry["size"])])
    return {"manifest": text, "objects": objects, "problems": problems}


def missing(directory: str, objects: Sequence[Dict[str, Any]]) -> List[List[str]]:
    """``[path, what]`` of the objects that are not there, or not with their sizes. Nothing is hashed."""
    found = []
    for entry in objects:
        try:
            size = os.stat(inside(directory, entry["path"])).st_size
        except FileNotFoundError:
            found.append([entry["path"], "missing"])
            continue
        if size != entry["size"]:
            found.append([entry["path"], "{} bytes, the manifest says {}".format(size, entry["size"])])
    return found


def digests(directory: str, ranges: Sequence[Sequence[Any]]) -> List[Optional[str]]:
    """SHA-256 of each ``[path, offset, length]`` of the tree; None where it cannot be read."""

    def one(item: Sequence[Any]) -> Optional[str]:
        try:
            return file_sha256(inside(directory, item[0]), item[1], item[2])
        except OSError:
            return None

    with ThreadPoolExecutor(HASHERS) as pool:
        return list(pool.map(one, ranges))


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
