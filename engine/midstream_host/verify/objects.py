"""Objects of a tree on its host.

The manifest is read, and the objects are found and checked.

Every copy begins with this module: it imports little.
"""

from __future__ import annotations

import json
import os
import posixpath
from itertools import chain
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypedDict

from midstream_core.json_types import JsonValue, int_of, str_of
from midstream_host import allowlist
from midstream_host.copy_items import CopyObject
from midstream_host.declarations import MANIFEST_LIMIT, reads
from midstream_host.object_files import (
    HASHERS,
    NotPlainError,
    descriptor_sha256,
    inside,
    object_sha256,
    open_object,
    size_of,
)
from midstream_host.shapes import FileName, Text

if TYPE_CHECKING:  # slow to import: functions that hash do it
    from concurrent.futures import Future

MANIFEST_BYTES = 1 << 26  # of a manifest that is read


class NoTreeError(ValueError):
    """The manifest is absent or malformed."""


class TreeDescription(TypedDict):
    """A manifest's text, and the objects that are missing or of another size.

    With each object is what is wrong with it.

    A dictionary, because every copy begins with this module and dataclasses take time to import.
    """

    manifest: Text
    problems: List[Tuple[FileName, Text]]


def read_manifest(directory: str, name: str) -> Tuple[str, Dict[str, JsonValue], List[CopyObject]]:
    """Return text, value and objects of a tree's manifest. Raises NoTreeError."""
    try:
        with os.fdopen(open_object(directory, name), "rb") as file:
            data = file.read(MANIFEST_BYTES + 1)
        if len(data) > MANIFEST_BYTES:
            raise NoTreeError("{}/{}: larger than {:,} bytes".format(directory, name, MANIFEST_BYTES))
        text = data.decode()
    except FileNotFoundError:
        raise NoTreeError("{}: there is no {}: not a complete tree".format(directory, name)) from None
    except NotPlainError as error:
        raise NoTreeError(str(error)) from None
    except UnicodeDecodeError as error:
        raise NoTreeError("{}/{}: not a manifest ({!r})".format(directory, name, error)) from error
    return (text, *parse_manifest(text, directory, name))


def parse_manifest(
    text: str, directory: str, name: str, kind: str = ""
) -> Tuple[Dict[str, JsonValue], List[CopyObject]]:
    """Return the value of a manifest and its objects.

    Raises NoTreeError where it has another shape, or names an object that a copy of this ``kind`` does not contain.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = allowlist.shown(repr(error))
        raise NoTreeError("{}: not a manifest ({})".format(posixpath.join(directory, name), what)) from error
    return value, objects_in(value, directory, name, kind)


def objects_in(value: Any, directory: str, name: str, kind: str = "") -> List[CopyObject]:
    """Return the objects in a manifest's value.

    Raises NoTreeError as `parse_manifest`.
    """
    where = posixpath.join(directory, name)
    try:
        objects: List[CopyObject] = [
            {"path": str(entry["path"]), "size": int(entry["size"]), "sha256": str(entry["sha256"])}
            for entry in value["objects"]
        ]
        if kind:
            allowlist.check_all(kind, value["objects"])
    except allowlist.NotAllowedError as error:
        raise NoTreeError("{}: {}".format(where, error)) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoTreeError("{}: not a manifest ({})".format(where, allowlist.shown(repr(error)))) from error
    for entry in objects:
        try:
            inside(directory, entry["path"])
        except ValueError as error:
            raise NoTreeError(str(error)) from None
    if len({entry["path"] for entry in objects}) != len(objects):
        raise NoTreeError("{}: names an object twice".format(where))
    return objects


@reads(limit=MANIFEST_LIMIT)
def describe(directory: str, manifest: str) -> TreeDescription:
    """Read the tree's manifest and look for its objects. Hashes nothing."""
    text, _, objects = read_manifest(directory, manifest)
    return {"manifest": text, "problems": missing(directory, objects)}


@reads(limit=MANIFEST_LIMIT)
def missing(directory: str, objects: Sequence[CopyObject]) -> List[Tuple[FileName, Text]]:
    """Find objects that are missing or have another size, each with what is wrong.

    Hashes nothing.
    """
    problems: List[Tuple[FileName, Text]] = []
    for entry in objects:
        try:
            size = size_of(directory, entry["path"])
        except FileNotFoundError:
            problems.append((entry["path"], "missing"))
            continue
        except OSError as error:
            problems.append((entry["path"], "cannot be read: {}".format(error.strerror)))
            continue
        if size != entry["size"]:
            problems.append((entry["path"], "{} bytes, the manifest says {}".format(size, entry["size"])))
    return problems


@reads(limit=MANIFEST_LIMIT)
def digests(directory: str, ranges: Sequence[Sequence[JsonValue]]) -> List[Optional[str]]:
    """Return the SHA-256 of each ``[path, offset, length]``; None if it is unreadable."""

    def digest_of(item: Sequence[JsonValue]) -> Optional[str]:
        try:
            return object_sha256(directory, str_of(item[0]), int_of(item[1]), int_of(item[2]))
        except OSError:
            return None

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(HASHERS) as pool:
        return list(pool.map(digest_of, ranges))


@reads()
def check(directory: str, entry: CopyObject) -> Optional[str]:
    """Return what is wrong with one object, or None. Reads all of it."""
    try:
        descriptor = open_object(directory, entry["path"])
        try:
            size = os.fstat(descriptor).st_size
            if size != entry["size"]:
                return "{} bytes, the manifest says {}".format(size, entry["size"])
            digest = descriptor_sha256(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return "cannot be read: {}".format(error.strerror)
    if digest != entry["sha256"]:
        return "SHA-256 is {}, the manifest says {}".format(digest, entry["sha256"])
    return None


def checked(directory: str, objects: Iterable[CopyObject]) -> Iterator[Tuple[CopyObject, Optional[str]]]:
    """Yield each object with what is wrong with it, in the order threads finish."""
    entries = iter(objects)
    first = next(entries, None)
    if first is None:
        return
    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(max(2, min(HASHERS, os.cpu_count() or 1))) as pool:
        running: Dict["Future[Optional[str]]", CopyObject] = {}
        queue = chain((first,), entries)
        while True:
            for entry in queue:
                running[pool.submit(check, directory, entry)] = entry
                if len(running) >= 4 * HASHERS:
                    break
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
