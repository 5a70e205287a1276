"""Checksums that services report, computed again from the bytes that arrive."""

from __future__ import annotations

import base64
import binascii
import hashlib
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from midstream_core.object_store.client_library import Data, library

# On a machine in FIPS mode MD5 exists only with this argument, which Python 3.8 lacks.
NO_SECURITY: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}


class _Hash(Protocol):
    def update(self, data: Data, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    """A CRC of 32 bits with the interface of `hashlib`."""

    def __init__(self, extend: Callable[[int, Data], int]) -> None:
        self._extend, self._value = extend, 0

    def update(self, data: Data, /) -> None:
        self._value = self._extend(self._value, data)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _begin(algorithm: str) -> _Hash:
    if algorithm == "crc32":
        return _Crc(lambda value, data: zlib.crc32(data, value))
    if algorithm == "crc32c":
        google_crc32c = library("google_crc32c")
        return _Crc(lambda value, data: google_crc32c.extend(value, bytes(data)))
    return hashlib.new(algorithm, **NO_SECURITY)


ALGORITHMS = ("sha256", "crc32c", "crc32", "sha1", "md5")


@dataclass(frozen=True)
class ObjectChecksum:
    """Checksum of an object, as its service reports it.

    Attributes:
        algorithm: One of ALGORITHMS.
        digest: Of the bytes, or of the digests of all parts, joined.
        part_size: Bytes of each part but the last; 0: the digest is of the bytes.
        certain: Whether other bytes are damaged. An ETag need not be an MD5.
    """

    algorithm: str
    digest: bytes
    part_size: int = 0
    certain: bool = True

    def begin(self) -> ChecksumComparison:
        """Return the comparison of a reading of the object."""
        return ChecksumComparison(self)


class ChecksumComparison:
    """Comparison of one reading of an object with its checksum.

    The bytes are given in order.
    """

    def __init__(self, expected: ObjectChecksum) -> None:
        self._expected = expected
        self._hash = _begin(expected.algorithm)
        self._parts: list[bytes] = []
        self._left = expected.part_size  # bytes that the part has not yet

    def update(self, data: bytes) -> None:
        """Take the bytes that follow."""
        if not self._expected.part_size:
            self._hash.update(data)
            return
        view = memoryview(data)
        while view:
            if not self._left:
                self._end_part()
            self._hash.update(view[: self._left])
            taken = min(self._left, len(view))
            self._left -= taken
            view = view[taken:]

    def _end_part(self) -> None:
        self._parts.append(self._hash.digest())
        self._hash, self._left = _begin(self._expected.algorithm), self._expected.part_size

    def matches(self) -> bool:
        """Return whether the bytes are those of the checksum."""
        if not self._expected.part_size:
            return self._hash.digest() == self._expected.digest
        parts = _begin(self._expected.algorithm)
        parts.update(b"".join([*self._parts, self._hash.digest()]))
        return parts.digest() == self._expected.digest


def decoded(text: str) -> bytes:
    """Return a digest that a service sent as base64; empty if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
