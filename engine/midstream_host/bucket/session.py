"""Target's side of a copy into a bucket: find, join, write the manifest last.

Objects up to 16 MiB are created in one request. Larger ones arrive as parts, marked temporary objects below
``.incoming/``, and are composed by the service. A later copy uses the parts of an interrupted one.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from midstream_core.json_types import JsonObject
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, AT_ONCE, BucketClient, StoredObject
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host import allowlist
from midstream_host.bucket import tree
from midstream_host.bucket.access_problem import report_problem
from midstream_host.copy.staging import part_name
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT, StdinLines
from midstream_host.copy_items import CopyObject
from midstream_host.declarations import program
from midstream_host.object_files import INCOMING, emit

REPORT_OBJECTS = 512  # objects in one line

Chunk = Tuple[int, int, str]  # offset, length, SHA-256


def part_path(entry: CopyObject, offset: int, length: int) -> str:
    """Return the path of an object's part, the same in each copy of these bytes."""
    return "{}/{}/{:020d}-{}".format(INCOMING, part_name(entry), offset, length)


@program
def serve(
    directory: str,
    generation: str,
    objects: Sequence[CopyObject],
    manifest: Optional[str],
    text: str,
    root: str,
    kind: str,
    access: JsonObject,
    survey: bool = True,
) -> int:
    """Run the target's side of a copy into a bucket.

    A program. Lines are those of ``copy.session.serve``.

    Args:
        directory: ``SCHEME://bucket/prefix``.
        generation: Not used.
        objects: ``{path, size, sha256}`` of the objects to copy.
        manifest: Name of the manifest; None: the tree has none.
        text: The manifest's text.
        root: Not used.
        kind: What the copy may contain (`allowlist`).
        access: Fields of `Access`.
        survey: Not used.
    """
    lines = StdinLines(idle_timeout=IDLE_TIMEOUT, last={"do": "end"})
    try:
        objects = allowlist.check_all(kind, objects)
    except allowlist.NotAllowedError as error:
        emit("problem", kind="unrequested", path=allowlist.shown(error.path), message=str(error))
        return 1
    try:
        return _served(lines, open_bucket(directory, Access.from_json(access)), objects, manifest, text)
    except (StoreError, OSError) as error:
        report_problem(error, emit)
        return 1


def _served(
    lines: StdinLines, bucket: BucketClient, objects: Sequence[CopyObject], manifest: Optional[str], text: str
) -> int:
    there_text, there_version = (None, ABSENT) if manifest is None else tree.text_or_none(bucket, manifest)
    if there_text is not None and tree.named(there_text) not in (None, tree.named(text)):
        emit("problem", kind="other")
        return 1
    there = bucket.entries()
    present = list(tree.right(bucket, there, objects))
    for start in range(0, len(present), REPORT_OBJECTS):
        emit("present", objects=present[start : start + REPORT_OBJECTS])
    names = set(present)
    gathering = _Gathering(bucket)
    for entry, chunks in _partial(bucket, there, [entry for entry in objects if entry["path"] not in names]):
        emit("part", path=entry["path"], chunks=chunks)
    emit("ready")
    by_path = {entry["path"]: entry for entry in objects}
    while True:
        line = lines.get()
        assert line is not None
        if line["do"] == "landed":
            for path, offset, length in line["ranges"]:
                gathering.landed(by_path[path], offset, length)
        elif line["do"] == "commit":
            _commit(bucket, objects, manifest, text, there_version)
            emit("committed")
            return 0
        elif line["do"] == "end":
            return 0


def _partial(
    bucket: BucketClient, there: Dict[str, StoredObject], objects: Sequence[CopyObject]
) -> Iterator[Tuple[CopyObject, List[Chunk]]]:
    """Yield each object with parts, and their (offset, length, SHA-256), in order."""
    if not any(path.startswith(INCOMING + "/") for path in there):
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for entry in objects:
            ranges: List[Tuple[int, int]] = []
            parts: List[StoredObject] = []
            start = part_path(entry, 0, 0).rpartition("/")[0] + "/"
            for path, part in sorted(there.items()):
                numbers = path[len(start) :].split("-") if path.startswith(start) else []
                if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
                    ranges.append((int(numbers[0]), int(numbers[1])))
                    parts.append(part)
            hashes = pool.map(partial(tree.recorded_hash, bucket), parts)
            chunks = [(offset, length, digest) for (offset, length), digest in zip(ranges, hashes) if digest]
            if chunks:
                yield entry, sorted(chunks)


class _Gathering:
    """Objects that arrive in ranges: once complete, read back, hashed and composed."""

    def __init__(self, bucket: BucketClient) -> None:
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(4)
        self._lock = threading.Lock()
        self._ranges: Dict[str, Dict[int, int]] = {}

    def landed(self, entry: CopyObject, offset: int, length: int) -> None:
        with self._lock:
            ranges = self._ranges.setdefault(entry["path"], {})
            ranges[offset] = length
            if sum(ranges.values()) < entry["size"]:
                return
            complete = sorted(self._ranges.pop(entry["path"]).items())
        self._pool.submit(self._join, entry, complete)

    def _join(self, entry: CopyObject, ranges: Sequence[Tuple[int, int]]) -> None:
        digest = hashlib.sha256()
        parts: List[StoredObject] = []
        try:
            for offset, length in ranges:
                path = part_path(entry, offset, length)
                joined = self._bucket.look(path)
                if joined is None:
                    raise StoreError(
                        "{}/{} was deleted: another copy writes to this prefix".format(self._bucket.url, path)
                    )
                digest.update(self._bucket.get(path, joined.version)[0])
                parts.append(joined)
            if digest.hexdigest() != entry["sha256"]:
                for joined in parts:
                    self._bucket.delete(joined.path, joined.version)
                message = "SHA-256 is {}".format(digest.hexdigest())
                emit("problem", kind="hash", path=entry["path"], message=message)
                return
            temporary = "{}/{}/joined".format(INCOMING, part_name(entry))
            self._bucket.join(entry["path"], parts, entry["size"], entry["sha256"], temporary)
        except Exception as error:  # noqa: BLE001  the app waits for this object
            report_problem(error, emit)
            return
        emit("placed", objects=[entry["path"]])


def _commit(
    bucket: BucketClient, objects: Sequence[CopyObject], manifest: Optional[str], text: str, version: str
) -> None:
    """Check every object in the bucket, create the manifest, delete temporary objects.

    The manifest is created on the condition that no other writer has created one. A listing may be behind: what it
    lacks is requested.
    """
    there = bucket.entries()
    for entry in objects:
        stored_object = there.get(entry["path"]) or bucket.look(entry["path"])
        if stored_object is None or stored_object.size != entry["size"]:
            raise StoreError("{}/{} was deleted during the copy".format(bucket.url, entry["path"]))
    if manifest is not None:
        data = text.encode()
        try:
            bucket.put(manifest, data, hashlib.sha256(data).hexdigest(), replaces=version)
        except ObjectExistsError:
            if tree.text_or_none(bucket, manifest)[0] != text:
                raise
    incomplete = [entry for path, entry in there.items() if path.startswith(INCOMING + "/")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(bucket.delete, [entry.path for entry in incomplete], [entry.version for entry in incomplete]))
