"""Trees of objects in a bucket; `verify.objects` is the counterpart for a disk."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from midstream_core.json_types import JsonObject, JsonValue, int_of, str_of
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, AT_ONCE, CHUNK, READS, BucketClient, StoredObject
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.copy_items import CopyObject
from midstream_host.declarations import MANIFEST_LIMIT, reads
from midstream_host.shapes import FileName, Text
from midstream_host.verify.objects import NoTreeError, TreeDescription, parse_manifest


@reads(limit=MANIFEST_LIMIT)
def describe(directory: str, manifest: str, access: JsonObject) -> TreeDescription:
    """As ``verify.objects.describe``."""
    with open_bucket(directory, Access.from_json(access)) as bucket:
        try:
            text = bucket.get(manifest)[0].decode()
        except FileNotFoundError:
            raise NoTreeError("{}: there is no {}: not a complete tree".format(directory, manifest)) from None
        _, objects = parse_manifest(text, directory, manifest)
        return {"manifest": text, "problems": _problems(bucket, objects)}


@reads(limit=MANIFEST_LIMIT)
def missing(directory: str, objects: Sequence[CopyObject], access: JsonObject) -> List[Tuple[FileName, Text]]:
    """As ``verify.objects.missing``."""
    with open_bucket(directory, Access.from_json(access)) as bucket:
        return _problems(bucket, objects)


def _problems(bucket: BucketClient, objects: Sequence[CopyObject]) -> List[Tuple[FileName, Text]]:
    there = bucket.entries()
    problems: List[Tuple[FileName, Text]] = []
    for entry in objects:
        stored = there.get(entry["path"]) or bucket.look(entry["path"])  # a listing may be behind
        if stored is None:
            problems.append((entry["path"], "missing"))
        elif stored.size != entry["size"]:
            problems.append((entry["path"], "{} bytes, the manifest says {}".format(stored.size, entry["size"])))
    return problems


@reads(limit=MANIFEST_LIMIT)
def digests(directory: str, ranges: Sequence[Sequence[JsonValue]], access: JsonObject) -> List[Optional[str]]:
    """As ``verify.objects.digests``; reads the ranges."""

    def digest_of(item: Sequence[JsonValue]) -> Optional[str]:
        try:
            return hashlib.sha256(bucket.read(str_of(item[0]), int_of(item[1]), int_of(item[2]))).hexdigest()
        except FileNotFoundError:
            return None

    with open_bucket(directory, Access.from_json(access)) as bucket, ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(digest_of, ranges))


@reads()
def check(directory: str, entry: CopyObject, access: JsonObject) -> Optional[str]:
    """As ``verify.objects.check``."""
    with open_bucket(directory, Access.from_json(access)) as bucket:
        return flaw(bucket, entry)


def flaw(bucket: BucketClient, entry: CopyObject, version: Optional[str] = None) -> Optional[str]:
    """Return what is wrong with an object, or None. Reads all of it in pieces.

    An object is read `READS` times before it is called damaged: the bytes may have changed on their way.
    """
    for _ in range(READS - 1):
        if _flaw(bucket, entry, version) is None:
            return None
    return _flaw(bucket, entry, version)


def _flaw(bucket: BucketClient, entry: CopyObject, version: Optional[str]) -> Optional[str]:
    digest, size = hashlib.sha256(), 0
    try:
        while size < entry["size"]:
            data = bucket.read(entry["path"], size, min(CHUNK, entry["size"] - size), version)
            if not data:
                return "{} bytes, the manifest says {}".format(size, entry["size"])
            digest.update(data)
            size += len(data)
    except FileNotFoundError:
        return "missing"
    if digest.hexdigest() != entry["sha256"]:
        return "SHA-256 is {}, the manifest says {}".format(digest.hexdigest(), entry["sha256"])
    return None


def recorded_hash(bucket: BucketClient, stored: StoredObject) -> Optional[str]:
    """Return the hash that was recorded with an object; None without one.

    A listing of S3 does not have it.
    """
    if stored.sha256 == "":
        looked = bucket.look(stored.path)
        return None if looked is None or looked.version != stored.version else looked.sha256
    return stored.sha256


def right(bucket: BucketClient, there: Dict[str, StoredObject], objects: Iterable[CopyObject]) -> Iterator[str]:
    """Yield paths of objects with the right hash.

    The hash is that of their metadata or, without it, of their bytes, which are read.
    """
    candidates: List[Tuple[CopyObject, StoredObject]] = []
    for entry in objects:
        stored = there.get(entry["path"])
        if stored is not None and stored.size == entry["size"]:
            candidates.append((entry, stored))

    def is_right(pair: Tuple[CopyObject, StoredObject]) -> bool:
        entry, stored_object = pair
        recorded = recorded_hash(bucket, stored_object)
        return flaw(bucket, entry, stored_object.version) is None if recorded is None else recorded == entry["sha256"]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (entry, _), good in zip(candidates, pool.map(is_right, candidates)):
            if good:
                yield entry["path"]


def text_or_none(bucket: BucketClient, manifest: str) -> Tuple[Optional[str], str]:
    """Return a manifest's text and version; None and ABSENT where there is none."""
    try:
        data, version = bucket.get(manifest)
    except FileNotFoundError:
        return None, ABSENT
    return data.decode(errors="replace"), version


def named(manifest: str) -> Optional[List[Tuple[str, int, str]]]:
    """Objects that a manifest lists; None where it cannot be read."""
    try:
        return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["objects"])
    except (ValueError, KeyError, TypeError):
        return None
