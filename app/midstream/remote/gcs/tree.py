"""Trees of objects in a bucket: the counterpart of `verify.objects`, which reads a disk."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from midstream.remote.copy.copy_items import CopyObject
from midstream.remote.declarations import MANIFEST_LIMIT, reads
from midstream.remote.gcs import client
from midstream.remote.shapes import FileName, Text
from midstream.remote.verify.objects import NoTreeError, TreeDescription, parse_manifest


@reads(limit=MANIFEST_LIMIT)
def describe(directory: str, manifest: str, access: Dict[str, Any]) -> TreeDescription:
    """As ``verify.objects.describe``."""
    with client.Bucket(directory, access) as bucket:
        try:
            text = bucket.get(manifest).decode()
        except FileNotFoundError:
            raise NoTreeError("{}: there is no {}: not a complete tree".format(directory, manifest)) from None
        _, objects = parse_manifest(text, directory, manifest)
        return {"manifest": text, "problems": _problems(bucket, objects)}


@reads(limit=MANIFEST_LIMIT)
def missing(directory: str, objects: Sequence[CopyObject], access: Dict[str, Any]) -> List[Tuple[FileName, Text]]:
    """As ``verify.objects.missing``."""
    with client.Bucket(directory, access) as bucket:
        return _problems(bucket, objects)


def _problems(bucket: client.Bucket, objects: Sequence[CopyObject]) -> List[Tuple[FileName, Text]]:
    there = bucket.names()
    found: List[Tuple[FileName, Text]] = []
    for entry in objects:
        blob = there.get(entry["path"])
        if blob is None:
            found.append((entry["path"], "missing"))
        elif blob.size != entry["size"]:
            found.append((entry["path"], "{} bytes, the manifest says {}".format(blob.size, entry["size"])))
    return found


@reads(limit=MANIFEST_LIMIT)
def digests(directory: str, ranges: Sequence[Sequence[Any]], access: Dict[str, Any]) -> List[Optional[str]]:
    """As ``verify.objects.digests``; reads the ranges."""

    def one(item: Sequence[Any]) -> Optional[str]:
        try:
            return hashlib.sha256(bucket.read(item[0], item[1], item[2])).hexdigest()
        except FileNotFoundError:
            return None

    with client.Bucket(directory, access) as bucket, ThreadPoolExecutor(client.AT_ONCE) as pool:
        return list(pool.map(one, ranges))


@reads()
def check(directory: str, entry: CopyObject, access: Dict[str, Any]) -> Optional[str]:
    """As ``verify.objects.check``."""
    with client.Bucket(directory, access) as bucket:
        return flaw(bucket, entry)


def flaw(bucket: client.Bucket, entry: CopyObject, generation: Optional[int] = None) -> Optional[str]:
    """Return what is wrong with an object, or None. Reads all of it in pieces."""
    digest, size = hashlib.sha256(), 0
    try:
        while size < entry["size"]:
            data = bucket.read(entry["path"], size, min(client.CHUNK, entry["size"] - size), generation)
            if not data:
                return "{} bytes, the manifest says {}".format(size, entry["size"])
            digest.update(data)
            size += len(data)
    except FileNotFoundError:
        return "missing"
    if digest.hexdigest() != entry["sha256"]:
        return "SHA-256 is {}, the manifest says {}".format(digest.hexdigest(), entry["sha256"])
    return None


def right(bucket: client.Bucket, there: Dict[str, Any], objects: Iterable[CopyObject]) -> Iterator[str]:
    """Yield paths of objects with the right hash, by their metadata or, without it, by reading them."""
    unknown: List[Tuple[CopyObject, int]] = []
    for entry in objects:
        blob = there.get(entry["path"])
        if blob is None or blob.size != entry["size"]:
            continue
        if client.is_it(blob, entry["size"], entry["sha256"]):
            yield entry["path"]
        elif client.recorded_hash(blob) is None:
            unknown.append((entry, int(blob.generation)))

    def wrong(pair: Tuple[CopyObject, int]) -> Optional[str]:
        return flaw(bucket, *pair)

    with ThreadPoolExecutor(client.AT_ONCE) as pool:
        for (entry, _), what in zip(unknown, pool.map(wrong, unknown)):
            if what is None:
                yield entry["path"]


def text_or_none(bucket: client.Bucket, manifest: str) -> Tuple[Optional[str], int]:
    """Return a manifest's text and generation; None and 0 where there is none."""
    blob = bucket.look(manifest)
    if blob is None:
        return None, 0
    return bucket.get(manifest, int(blob.generation)).decode(errors="replace"), int(blob.generation)


def named(manifest: str) -> Optional[List[Tuple[str, int, str]]]:
    """Objects that a manifest lists; None where it cannot be read."""
    try:
        return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["objects"])
    except (ValueError, KeyError, TypeError):
        return None
