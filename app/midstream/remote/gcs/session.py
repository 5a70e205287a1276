"""A bucket as the target of a copy: what is there already, what is on its way, and the manifest that is written last.

Objects up to a chunk are created in one request. Larger ones arrive as parts, temporary objects below ``.incoming/``
that are marked as such, and are joined by the service. Parts outlive whoever sent them: a later copy goes on with them.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple

from midstream.remote.copy import allowlist
from midstream.remote.copy.object_files import INCOMING, emit
from midstream.remote.copy.staging import part_name
from midstream.remote.copy.stdin_lines import SILENCE, Lines
from midstream.remote.gcs import client, tree

TOGETHER = 512  # objects in one report


def part_path(entry: Dict[str, Any], offset: int, length: int) -> str:
    """Where a part of an object lies. The same for every copy of the same bytes to the same name."""
    return "{}/{}/{:020d}-{}".format(INCOMING, part_name(entry), offset, length)


def serve(
    directory: str,
    generation: str,
    objects: Sequence[Dict[str, Any]],
    manifest: Optional[str],
    text: str,
    root: str,
    kind: str,
    access: Dict[str, Any],
    survey: bool = True,
) -> int:
    """As ``copy.session.serve``, whose lines it speaks, for a bucket: ``directory`` is ``gs://bucket/prefix``."""
    lines = Lines(silence=SILENCE, last={"do": "end"})
    try:
        objects = allowlist.check_all(kind, objects)
    except allowlist.NotAllowed as error:
        emit("problem", kind="unrequested", path=allowlist.shown(error.path), message=str(error))
        return 1
    try:
        return _served(lines, client.Bucket(directory, access), objects, manifest, text)
    except (client.GcsError, OSError) as error:
        client.tell(error, emit)
        return 1


def _served(
    lines: Lines, bucket: client.Bucket, objects: Sequence[Dict[str, Any]], manifest: Optional[str], text: str
) -> int:
    there_text, there_generation = (None, 0) if manifest is None else tree.text_or_none(bucket, manifest)
    if there_text is not None and tree.named(there_text) not in (None, tree.named(text)):
        emit("problem", kind="other")
        return 1
    there = bucket.names()
    present = list(tree.right(bucket, there, objects))
    for start in range(0, len(present), TOGETHER):
        emit("present", objects=present[start : start + TOGETHER])
    known = set(present)
    gathering = _Gathering(bucket)
    for entry in objects:
        if entry["path"] not in known:
            parts = _parts(there, entry)
            if parts:
                emit("part", path=entry["path"], chunks=[[o, n, blob.metadata[client.HASH]] for (o, n), blob in parts])
    emit("ready")
    by_path = {entry["path"]: entry for entry in objects}
    while True:
        line = lines.get()
        assert line is not None
        if line["do"] == "landed":
            for path, offset, length in line["ranges"]:
                gathering.landed(by_path[path], offset, length)
        elif line["do"] == "commit":
            _commit(bucket, objects, manifest, text, there_generation)
            emit("committed")
            return 0
        elif line["do"] == "end":
            return 0


def _parts(there: Dict[str, Any], entry: Dict[str, Any]) -> List[Tuple[Tuple[int, int], Any]]:
    """((offset, length), blob) of an object's parts, in order."""
    start = part_path(entry, 0, 0).rpartition("/")[0] + "/"
    found = []
    for path, blob in there.items():
        words = path[len(start) :].split("-") if path.startswith(start) else []
        if len(words) == 2 and all(word.isdigit() for word in words) and client.HASH in (blob.metadata or {}):
            found.append(((int(words[0]), int(words[1])), blob))
    return sorted(found, key=lambda pair: pair[0])


class _Gathering:
    """Objects of which ranges have arrived: read back, hashed and joined once they are whole."""

    def __init__(self, bucket: client.Bucket):
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(4)
        self._lock = threading.Lock()
        self._ranges: Dict[str, Dict[int, int]] = {}

    def landed(self, entry: Dict[str, Any], offset: int, length: int) -> None:
        with self._lock:
            ranges = self._ranges.setdefault(entry["path"], {})
            ranges[offset] = length
            if sum(ranges.values()) < entry["size"]:
                return
            whole = sorted(self._ranges.pop(entry["path"]).items())
        self._pool.submit(self._join, entry, whole)

    def _join(self, entry: Dict[str, Any], ranges: Sequence[Tuple[int, int]]) -> None:
        digest, parts = hashlib.sha256(), []
        try:
            for offset, length in ranges:
                path = part_path(entry, offset, length)
                blob = self._bucket.look(path)
                if blob is None:
                    raise client.GcsError(
                        "{}/{} is gone: another copy goes to this place".format(self._bucket.url, path)
                    )
                digest.update(self._bucket.get(path, int(blob.generation)))
                parts.append(blob)
            if digest.hexdigest() != entry["sha256"]:
                for blob in parts:
                    self._bucket.delete(blob)
                message = "SHA-256 is {}".format(digest.hexdigest())
                emit("problem", kind="hash", path=entry["path"], message=message)
                return
            temporary = "{}/{}/joined".format(INCOMING, part_name(entry))
            self._bucket.join(entry["path"], parts, entry["size"], entry["sha256"], temporary)
        except (client.GcsError, OSError) as error:
            client.tell(error, emit)
            return
        emit("placed", objects=[entry["path"]])


def _commit(
    bucket: client.Bucket, objects: Sequence[Dict[str, Any]], manifest: Optional[str], text: str, generation: int
) -> None:
    """Ask the bucket for every object once more; then create the manifest, under the condition that nobody else has
    written one meanwhile, and remove what is temporary."""
    there = bucket.names()
    for entry in objects:
        blob = there.get(entry["path"])
        if blob is None or blob.size != entry["size"]:
            raise client.GcsError("{}/{}: not there any more: somebody removed it".format(bucket.url, entry["path"]))
    if manifest is not None:
        data = text.encode()
        try:
            bucket.put(manifest, data, hashlib.sha256(data).hexdigest(), generation=generation)
        except client.Taken:
            if tree.text_or_none(bucket, manifest)[0] != text:
                raise
    left = [blob for path, blob in there.items() if path.startswith(INCOMING + "/")]
    with ThreadPoolExecutor(client.AT_ONCE) as pool:
        list(pool.map(bucket.delete, left))
