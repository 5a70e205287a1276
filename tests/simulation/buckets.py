"""A simulated bucket: objects in memory, requests over links, with and without conditional writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from midstream_core.object_store.bucket_client import ABSENT, StoredObject
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.urls import split_url
from simulation.scheduler import BEGIN, SCHEDULER

REQUEST = 0.02  # seconds of a request
URL = "s3://bucket/all"  # of the store in the fleet file


@dataclass
class Bucket:
    """The objects of all buckets, by URL without scheme.

    Attributes:
        conditional: Whether a write on a condition looks at it.
        reachable: Whether requests are answered.
    """

    conditional: bool = True
    reachable: bool = True
    objects: dict[str, tuple[bytes, StoredObject]] = field(default_factory=dict)
    versions: int = 0


class Client:
    """`BucketClient` of a simulated bucket. ``bucket_of`` returns the bucket of the present world."""

    def __init__(self, url: str, bucket_of: Callable[[], Bucket]) -> None:
        self.url = url.rstrip("/")
        _, self.bucket, self.prefix = split_url(self.url)
        self._bucket_of = bucket_of

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        """Connections are not simulated."""

    def _request(self) -> Bucket:
        SCHEDULER.park(REQUEST)
        bucket = self._bucket_of()
        if not bucket.reachable:
            SCHEDULER.park(60.0)
            raise StoreError(f"{self.url}: no answer", "is the service up?")
        return bucket

    def _key(self, path: str) -> str:
        return f"{self.bucket}/{self.prefix}/{path}" if self.prefix else f"{self.bucket}/{path}"

    def probe(self) -> None:
        self._request()

    def entries(self, below: str = "") -> dict[str, StoredObject]:
        start = self._key("")
        listed = sorted(self._request().objects.items())
        return {
            key[len(start) :]: _at(stored, key[len(start) :])
            for key, (_, stored) in listed
            if key.startswith(self._key(below))
        }

    def folders(self) -> list[str]:
        return sorted({path.partition("/")[0] for path in self.entries() if "/" in path})

    def look(self, path: str) -> StoredObject | None:
        found = self._request().objects.get(self._key(path))
        return None if found is None else _at(found[1], path)

    def checksum(self, stored: StoredObject) -> None:
        del stored

    def get(self, path: str, version: str | None = None) -> tuple[bytes, str]:
        found = self._request().objects.get(self._key(path))
        if found is None or version not in (None, found[1].version):
            raise FileNotFoundError(f"{self.url}/{path}")
        return found[0], found[1].version

    def read(self, path: str, offset: int, length: int, version: str | None = None) -> bytes:
        return self.get(path, version)[0][offset : offset + length]

    def read_into(self, path: str, offset: int, into: memoryview, version: str | None = None) -> int:
        data = self.read(path, offset, len(into), version)
        into[: len(data)] = data
        return len(data)

    def read_blocks(
        self,
        path: str,
        offset: int,
        length: int,
        memory: memoryview,
        take: Callable[[memoryview], None],
        version: str | None = None,
    ) -> int:
        del memory
        data = self.read(path, offset, length, version)
        take(memoryview(data))
        return len(data)

    def put(
        self, path: str, data: Any, sha256: str = "", *, part: bool = False, replaces: str | None = None
    ) -> StoredObject:
        del part
        bucket, key, data = self._request(), self._key(path), bytes(data)
        present = bucket.objects.get(key)
        if replaces is not None and (present[1].version if present else ABSENT) != replaces:
            raise ObjectExistsError(f"{self.url}/{path} exists in another version")
        if not bucket.conditional:
            SCHEDULER.park(REQUEST)  # another process may write now
        bucket.versions += 1
        digest = sha256 or hashlib.sha256(data).hexdigest()
        stored = StoredObject(path, len(data), str(bucket.versions), BEGIN + SCHEDULER.now, "", digest)
        bucket.objects[key] = data, stored
        return stored

    def put_file(self, path: str, file: str, sha256: str) -> None:
        with open(file, "rb") as opened:
            self.put(path, opened.read(), sha256, replaces=ABSENT)

    def join(self, *_: Any) -> StoredObject:
        raise AssertionError("no object is large enough to be joined")

    def delete(self, path: str, version: str | None = None) -> None:
        bucket = self._request()
        present = bucket.objects.get(self._key(path))
        if present is not None and version in (None, present[1].version):
            del bucket.objects[self._key(path)]

    def has_conditions(self) -> bool:
        return self._bucket_of().conditional


def _at(stored: StoredObject, path: str) -> StoredObject:
    return StoredObject(path, stored.size, stored.version, stored.updated, stored.crc32c, stored.sha256)


__all__ = ["URL", "Bucket", "Client"]
