"""Objects in buckets, in memory: generations, preconditions, listings."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import itertools
import threading
import time
from typing import Any
from urllib.parse import quote

import google_crc32c

PAGE = 1000  # entries of a listing, at most


@dataclasses.dataclass(frozen=True)
class Blob:
    """One generation of an object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    content_type: str
    metadata: dict[str, str]
    updated: float
    etag: str = ""  # of an object of several parts
    components: int = 0  # objects of which Cloud Storage has composed it; then it has no MD5

    @functools.cached_property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @functools.cached_property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    def resource(self, url: str = "") -> dict[str, Any]:
        """Return the object's metadata as the API has it: numbers are strings.

        ``url``: of the service, for a link to the bytes, which gcloud and gsutil follow.
        """
        media = f"/download/storage/v1/b/{self.bucket}/o/{quote(self.name, '')}?generation={self.generation}&alt=media"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.updated)) + f".{int(self.updated % 1 * 1000):03d}Z"
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "crc32c": self.crc32c,
            **({"componentCount": self.components} if self.components else {"md5Hash": self.md5}),
            "etag": f"g{self.generation}",
            "timeCreated": stamp,
            "updated": stamp,
            "metadata": self.metadata,
            **(
                {"mediaLink": f"{url}/download/storage/v1/b/{self.bucket}/o/{quote(self.name, safe='')}?{media}"}
                if url
                else {}
            ),
        }


class RefusedError(Exception):
    """A response other than success. ``code`` is the service's name of the error."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Buckets:
    """Every bucket by name. Thread-safe."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Blob]] = {}
        self.lock = threading.Lock()
        self.late = 0  # listings that still lack the newest object: a listing may be behind
        self._generations = itertools.count(time.time_ns() // 1000)

    def create(self, bucket: str) -> None:
        self.buckets.setdefault(bucket, {})

    def blobs(self, bucket: str, prefix: str = "") -> dict[str, Blob]:
        """Return the objects below a prefix by name."""
        with self.lock:
            return {name: blob for name, blob in sorted(self.buckets[bucket].items()) if name.startswith(prefix)}

    def put(self, bucket: str, name: str, data: bytes, query: dict[str, str] | None = None, **more: Any) -> Blob:
        """Create or replace an object. RefusedError if a precondition in ``query`` is not met."""
        with self.lock:
            objects = self.bucket(bucket)
            check_preconditions(objects.get(name), query or {})
            blob = Blob(
                bucket, name, bytes(data), next(self._generations), more.get("content_type", ""),
                more.get("metadata") or {}, time.time(), more.get("etag", ""), more.get("components", 0),
            )  # fmt: skip
            for field, expected in (("crc32c", more.get("crc32c")), ("md5", more.get("md5"))):
                if expected and getattr(blob, field) != expected:
                    raise RefusedError(
                        400, f"the {field} {expected} does not belong to what arrived ({len(data)} bytes)"
                    )
            objects[name] = blob
            return blob

    def get(self, bucket: str, name: str, query: dict[str, str]) -> Blob:
        with self.lock:
            blob = self.bucket(bucket).get(name)
        if blob is None or query.get("generation", str(blob.generation)) != str(blob.generation):
            raise RefusedError(404, f"No such object: {bucket}/{name}", "NoSuchKey")
        check_preconditions(blob, query, reading=True)
        return blob

    def delete(self, bucket: str, name: str, query: dict[str, str]) -> None:
        with self.lock:
            objects = self.bucket(bucket)
            check_preconditions(objects.get(name), query)
            if name not in objects:
                raise RefusedError(404, f"No such object: {bucket}/{name}", "NoSuchKey")
            del objects[name]

    def listing(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        """Return a page of a listing as Cloud Storage has it."""
        chosen, following = self.page(bucket, query)
        page: dict[str, Any] = {"kind": "storage#objects"}
        page["items"] = [blob.resource(getattr(self, "url", "")) for _, blob in chosen if blob is not None]
        page["prefixes"] = [name for name, blob in chosen if blob is None]
        page["nextPageToken"] = following
        return {key: value for key, value in page.items() if value}

    def page(self, bucket: str, query: dict[str, str]) -> tuple[list[tuple[str, Blob | None]], str]:
        """Return a page of a listing, and where the next one begins, empty at the end.

        The entries are objects and, with a delimiter, the prefixes that end with it.
        """
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after, limit = query.get("pageToken", ""), min(int(query.get("maxResults", PAGE)), PAGE)
        low, high = query.get("startOffset", ""), query.get("endOffset", "")
        entries: dict[str, Blob | None] = {}
        with self.lock:
            objects = sorted(self.bucket(bucket).items())
            if self.late and objects:
                self.late -= 1
                objects.remove(max(objects, key=lambda pair: pair[1].generation))
        for name, blob in objects:
            if not name.startswith(prefix) or name < low or (high and name >= high):
                continue
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            entries.setdefault(name if end < 0 else name[: end + len(delimiter)], blob if end < 0 else None)
        names = [name for name in entries if name > after]
        return [(name, entries[name]) for name in names[:limit]], names[limit - 1] if len(names) > limit else ""

    def bucket(self, bucket: str) -> dict[str, Blob]:
        if bucket not in self.buckets:
            raise RefusedError(404, f"The specified bucket does not exist: {bucket}", "NoSuchBucket")
        return self.buckets[bucket]


def check_preconditions(blob: Blob | None, query: dict[str, str], *, reading: bool = False) -> None:
    """Raise RefusedError if ``ifGenerationMatch`` or the like is not met; 0 means that no object exists."""
    generation = blob.generation if blob else 0
    wanted, unwanted = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    if wanted is not None and int(wanted) != generation:
        raise RefusedError(412, f"ifGenerationMatch is {wanted}, the generation is {generation}")
    if unwanted is not None and int(unwanted) == generation:
        raise RefusedError(304 if reading else 412, f"the generation is {generation}")
    if blob and query.get("ifMetagenerationMatch", "1") != "1":
        raise RefusedError(412, "the metageneration is 1")
