"""A tree of objects in a bucket: what `verify/tree.py` tells of one on a disk."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from midstream.remote.gcs import client
from midstream.remote.verify.objects import NoTree, parse_manifest


def describe(directory: str, manifest: str, access: Dict[str, Any]) -> Dict[str, Any]:
    """As ``verify.objects.describe``."""
    with client.Bucket(directory, access) as bucket:
        try:
            text = bucket.get(manifest).decode()
        except FileNotFoundError:
            raise NoTree("{}: there is no {}: not a complete tree".format(directory, manifest)) from None
        _, objects = parse_manifest(text, directory, manifest)
        return {"manifest": text, "problems": _problems(bucket, objects)}


def missing(directory: str, objects: Sequence[Dict[str, Any]], access: Dict[str, Any]) -> List[List[str]]:
    """As ``verify.objects.missing``."""
    with client.Bucket(directory, access) as bucket:
        return _problems(bucket, objects)


def _problems(bucket: client.Bucket, objects: Sequence[Dict[str, Any]]) -> List[List[str]]:
    there = bucket.names()
    found = []
    for entry in objects:
        blob = there.get(entry["path"])
        if blob is None:
            found.append([entry["path"], "missing"])
        elif blob.size != entry["size"]:
            found.append([entry["path"], "{} bytes, the manifest says {}".format(blob.size, entry["size"])])
    return found


def digests(directory: str, ranges: Sequence[Sequence[Any]], access: Dict[str, Any]) -> List[Optional[str]]:
    """As ``verify.objects.digests``. Reads them."""

    def one(item: Sequence[Any]) -> Optional[str]:
        try:
            return hashlib.sha256(bucket.read(item[0], item[1], item[2])).hexdigest()
        except FileNotFoundError:
            return None

    with client.Bucket(directory, access) as bucket, ThreadPoolExecutor(client.AT_ONCE) as pool:
        return list(pool.map(one, ranges))


def check(directory: str, entry: Dict[str, Any], access: Dict[str, Any]) -> Optional[str]:
    """As ``verify.objects.check``."""
    with client.Bucket(directory, access) as bucket:
        return flaw(bucket, entry)


def flaw(bucket: client.Bucket, entry: Dict[str, Any], generation: Optional[int] = None) -> Optional[str]:
    """What is wrong with an object, or None. Reads all of it, a piece at a time."""
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


def right(bucket: client.Bucket, there: Dict[str, Any], objects: Iterable[Dict[str, Any]]) -> Iterator[str]:
    """Paths of the objects that lie there, by the hash that was kept with them, or, where none was, by reading them."""
    unknown = []
    for entry in objects:
        blob = there.get(entry["path"])
        if blob is None or blob.size != entry["size"]:
            continue
        if client.is_it(blob, entry["size"], entry["sha256"]):
            yield entry["path"]
        elif client.HASH not in (blob.metadata or {}):
            unknown.append((entry, int(blob.generation)))

    def wrong(pair: Tuple[Dict[str, Any], int]) -> Optional[str]:
        return flaw(bucket, *pair)

    with ThreadPoolExecutor(client.AT_ONCE) as pool:
        for (entry, _), what in zip(unknown, pool.map(wrong, unknown)):
            if what is None:
                yield entry["path"]


def text_or_none(bucket: client.Bucket, manifest: str) -> Tuple[Optional[str], int]:
    """A manifest's text and generation; None and 0 where there is none."""
    blob = bucket.look(manifest)
    if blob is None:
        return None, 0
    return bucket.get(manifest, int(blob.generation)).decode(errors="replace"), int(blob.generation)


def named(manifest: str) -> Optional[List[Tuple[str, int, str]]]:
    """What a manifest names; None where it cannot be read."""
    try:
        return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["objects"])
    except (ValueError, KeyError, TypeError):
        return None
