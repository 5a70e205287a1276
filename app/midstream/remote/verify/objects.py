"""The objects of a tree, looked at where they lie: what the manifest names, what is there, what is right. It imports
little, because copies begin with it.
"""

from __future__ import annotations

import json
import os
import posixpath
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from midstream.remote.copy import allowlist
from midstream.remote.copy.object_files import (
    HASHERS,
    NotPlain,
    descriptor_sha256,
    inside,
    object_sha256,
    open_object,
    size_of,
)

MANIFEST_BYTES = 1 << 26  # of a manifest that is read


class NoTree(ValueError):
    """There is no manifest, or it is none."""


def read_manifest(directory: str, name: str) -> Tuple[str, Dict[str, Any], List[Dict[str, Any]]]:
    """Text, value and objects of a tree's manifest. NoTree where it is absent or of another shape."""
    try:
        with os.fdopen(open_object(directory, name), "rb") as file:
            data = file.read(MANIFEST_BYTES + 1)
        if len(data) > MANIFEST_BYTES:
            raise NoTree("{}/{}: larger than {:,} bytes".format(directory, name, MANIFEST_BYTES))
        text = data.decode()
    except FileNotFoundError:
        raise NoTree("{}: there is no {}: not a complete tree".format(directory, name)) from None
    except NotPlain as error:
        raise NoTree(str(error)) from None
    except UnicodeDecodeError as error:
        raise NoTree("{}/{}: not a manifest ({!r})".format(directory, name, error)) from error
    return (text, *parse_manifest(text, directory, name))


def parse_manifest(text: str, directory: str, name: str, kind: str = "") -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Value and objects of a manifest. NoTree where it is of another shape, or where it names an object that a copy of
    this ``kind`` (`allowlist.py`) does not contain."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = allowlist.shown(repr(error))
        raise NoTree("{}: not a manifest ({})".format(posixpath.join(directory, name), what)) from error
    return value, objects_in(value, directory, name, kind)


def objects_in(value: Any, directory: str, name: str, kind: str = "") -> List[Dict[str, Any]]:
    """The objects that the value of a manifest names. NoTree as of `parse_manifest`."""
    where = posixpath.join(directory, name)
    try:
        objects = [
            {"path": str(entry["path"]), "size": int(entry["size"]), "sha256": str(entry["sha256"])}
            for entry in value["objects"]
        ]
        if kind:
            allowlist.check_all(kind, value["objects"])
    except allowlist.NotAllowed as error:
        raise NoTree("{}: {}".format(where, error)) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoTree("{}: not a manifest ({})".format(where, allowlist.shown(repr(error)))) from error
    for entry in objects:
        try:
            inside(directory, entry["path"])
        except ValueError as error:
            raise NoTree(str(error)) from None
    if len({entry["path"] for entry in objects}) != len(objects):
        raise NoTree("{}: names an object twice".format(where))
    return objects


def describe(directory: str, manifest: str) -> Dict[str, Any]:
    """The tree's manifest as text, and the objects that are missing or of another size (not hashed)."""
    text, _, objects = read_manifest(directory, manifest)
    return {"manifest": text, "problems": missing(directory, objects)}


def missing(directory: str, objects: Sequence[Dict[str, Any]]) -> List[List[str]]:
    """``[path, what]`` of the objects that are not there, or not with their sizes. Nothing is hashed."""
    found = []
    for entry in objects:
        try:
            size = size_of(directory, entry["path"])
        except FileNotFoundError:
            found.append([entry["path"], "missing"])
            continue
        except OSError as error:
            found.append([entry["path"], "cannot be read: {}".format(error.strerror)])
            continue
        if size != entry["size"]:
            found.append([entry["path"], "{} bytes, the manifest says {}".format(size, entry["size"])])
    return found


def digests(directory: str, ranges: Sequence[Sequence[Any]]) -> List[Optional[str]]:
    """SHA-256 of each ``[path, offset, length]`` of the tree; None where it cannot be read."""

    def one(item: Sequence[Any]) -> Optional[str]:
        try:
            return object_sha256(directory, item[0], item[1], item[2])
        except OSError:
            return None

    with ThreadPoolExecutor(HASHERS) as pool:
        return list(pool.map(one, ranges))


def check(directory: str, entry: Dict[str, Any]) -> Optional[str]:
    """What is wrong with one object, or None. Reads all of it."""
    try:
        descriptor = open_object(directory, entry["path"])
        try:
            size = os.fstat(descriptor).st_size
            if size != entry["size"]:
                return "{} bytes, the manifest says {}".format(size, entry["size"])
            found = descriptor_sha256(descriptor)
        finally:
            os.close(descriptor)
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
