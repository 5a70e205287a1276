"""Interface of a bucket's client, and what it says of an object."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from midstream_core.object_store.client_library import Data

if TYPE_CHECKING:
    from midstream_core.object_store.object_checksum import ObjectChecksum

ABSENT = ""  # version of an object that does not exist
HASH = "midstream-sha256"  # metadata key: SHA-256 of an object's bytes
MARK = "midstream"  # metadata key; "part": a temporary object, deleted when the manifest is written
CHUNK = 8 << 20  # bytes of a request; a stream that was cut sends at most so many again
BLOCK = 256 << 10  # bytes of a body that are used at a time: they stay in a processor's cache
AT_ONCE = 16  # concurrent requests of one program
READS = 3  # times that an object is read before it is called damaged


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing or a request has it.

    Attributes:
        path: Relative to the client's URL.
        size: Bytes.
        version: What a conditional request names: the generation, or the ETag.
        updated: UTC seconds.
        crc32c: Base64; empty where the service does not report it.
        sha256: Of its bytes, recorded when it was written. None: not recorded; empty: a listing does not report it.
    """

    path: str
    size: int
    version: str
    updated: float
    crc32c: str = ""
    sha256: str | None = ""


class BucketClient(Protocol):
    """The objects below ``url``. Paths are relative to it. Any thread may use it.

    Transient failures (408, 429, 5xx, lost connections, no answer) are repeated. Every method raises FileNotFoundError
    for a missing object and `StoreError` for any other failure.
    """

    url: str
    bucket: str
    prefix: str

    def __enter__(self) -> BucketClient: ...

    def __exit__(self, *raised: object) -> None:
        """Close its connections."""
        ...

    def probe(self) -> None:
        """List one object.

        Raises `StoreError` where that is not allowed or there is no bucket.
        """
        ...

    def entries(self, below: str = "") -> dict[str, StoredObject]:
        """Return all objects whose relative path begins with ``below``, by relative path."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the folders directly below the URL."""
        ...

    def look(self, path: str) -> StoredObject | None:
        """Return an object with its recorded hash; None where there is none."""
        ...

    def checksum(self, stored: StoredObject) -> ObjectChecksum | None:
        """Return the checksum that the service reports of the version in ``stored``.

        None: the service reports none that can be computed.
        """
        ...

    def get(self, path: str, version: str | None = None) -> tuple[bytes, str]:
        """Return an object's bytes, checked against its recorded hash, and its version.

        ``version``: the version to read.
        """
        ...

    def read(self, path: str, offset: int, length: int, version: str | None = None) -> bytes:
        """Return a range; fewer bytes at the object's end."""
        ...

    def read_into(self, path: str, offset: int, into: memoryview, version: str | None = None) -> int:
        """Read a range into memory; return how many bytes arrived.

        Fewer bytes than ``into`` has arrive at the object's end.
        """
        ...

    def read_blocks(
        self,
        path: str,
        offset: int,
        length: int,
        memory: memoryview,
        take: Callable[[memoryview], None],
        version: str | None = None,
    ) -> int:
        """Read a range; use its bytes, in order, while they arrive; return their number.

        Args:
            path: Path of the object.
            offset: Of the range.
            length: Bytes of the range.
            memory: For the bytes, in blocks of up to `BLOCK` bytes. Where it has fewer than ``length`` bytes, each
                block replaces the one before.
            take: Called with each block, in the memory, once. Its errors are raised, and nothing is repeated.
            version: The version to read.
        """
        ...

    def put(
        self, path: str, data: Data, sha256: str = "", *, part: bool = False, replaces: str | None = None
    ) -> StoredObject:
        """Create or replace an object in one request.

        A request whose response was lost counts as a success if the object is found.

        Args:
            path: Path of the object.
            data: The bytes.
            sha256: Their hash, if it is known; recorded with the object.
            part: Whether to mark it as a temporary object.
            replaces: The only version that may be replaced (ABSENT: the object must not exist). None: any.

        Raises:
            ObjectExistsError: Another version exists.
        """
        ...

    def put_file(self, path: str, file: str, sha256: str) -> None:
        """Create an object from ``file``, which has the hash ``sha256``.

        An existing object must have the same hash.

        Raises:
            ObjectExistsError: Another object exists.
        """
        ...

    def join(self, path: str, parts: Iterable[StoredObject], size: int, sha256: str, temporary: str) -> StoredObject:
        """Compose an object of parts, in order, in the service, and delete the parts.

        Args:
            path: Path of the object.
            parts: The parts, in order.
            size: Bytes of the object.
            sha256: Hash of the object; recorded with it.
            temporary: Beginning of the names of groups, in which more parts than one request may have are
                composed.
        """
        ...

    def delete(self, path: str, version: str | None = None) -> None:
        """Delete an object, or one version of it; no error where it does not exist."""
        ...

    def has_conditions(self) -> bool:
        """Return whether of two concurrent writes on a condition at most one succeeds."""
        ...


def hashed(data: Data) -> str:
    """Return the SHA-256 of bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def has_bytes(stored: StoredObject | None, size: int, sha256: str) -> bool:
    """Return whether an object has these bytes, by its recorded hash."""
    return stored is not None and stored.size == size and stored.sha256 == sha256


class ObjectFile(io.RawIOBase):
    """An object as a seekable file.

    `io.BufferedReader` around it limits the number of requests.
    """

    def __init__(self, client: BucketClient, path: str, size: int, version: str | None = None) -> None:
        super().__init__()
        self._client, self._path, self._size, self._version = client, path, size, version
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, origin: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[origin]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        if not length:
            return 0
        count = self._client.read_into(self._path, self._position, memoryview(buffer).cast("B")[:length], self._version)
        self._position += count
        return count
