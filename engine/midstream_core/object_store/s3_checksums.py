"""Checksums of objects as S3 services report them, in the answer to HEAD."""

from __future__ import annotations

import re
from collections.abc import Callable

from midstream_core.object_store.bucket_client import HASH
from midstream_core.object_store.client_library import Answer
from midstream_core.object_store.object_checksum import ObjectChecksum, decoded

_REPORTED = {"sha256": "ChecksumSHA256", "crc32c": "ChecksumCRC32C", "crc32": "ChecksumCRC32", "sha1": "ChecksumSHA1"}
_PARTS = re.compile(r"-(\d+)$")  # at the end of an ETag and a checksum that were made of those of parts
_MD5 = re.compile(r"[0-9a-f]{32}")
_SIZES = {"sha256": 32, "crc32c": 4, "crc32": 4, "sha1": 20}


def checksum_of(answer: Answer, part_size: Callable[[], int]) -> ObjectChecksum | None:
    """Return the checksum of an object.

    In this order: the hash that was recorded with it, a checksum of the service, the ETag where it may be an MD5: that
    of an object with a key of KMS or of the customer is not. None: there is none that can be computed.

    Args:
        answer: Answer of ``head_object`` with ``ChecksumMode``.
        part_size: Returns the size of the first part of an object that was uploaded in parts; 0: not known.
    """
    recorded = answer.get("Metadata", {}).get(HASH, "")
    if re.fullmatch("[0-9a-f]{64}", recorded):
        return ObjectChecksum("sha256", bytes.fromhex(recorded))
    size, tag = int(answer["ContentLength"]), str(answer["ETag"]).strip('"')
    for algorithm, name in _REPORTED.items():
        text = str(answer.get(name, ""))
        digest = decoded(_PARTS.sub("", text))
        if len(digest) != _SIZES[algorithm]:
            continue
        of_parts = _PARTS.search(text) or answer.get("ChecksumType") == "COMPOSITE"
        if not of_parts and (answer.get("ChecksumType") == "FULL_OBJECT" or not _PARTS.search(tag)):
            return ObjectChecksum(algorithm, digest)
        if of_parts and (length := _length(size, tag, part_size)):
            return ObjectChecksum(algorithm, digest, length)
    keyed = answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer
    if keyed or not _MD5.fullmatch(_PARTS.sub("", tag)):
        return None
    digest = bytes.fromhex(_PARTS.sub("", tag))
    if not _PARTS.search(tag):
        return ObjectChecksum("md5", digest, certain=False)
    length = _length(size, tag, part_size)
    return ObjectChecksum("md5", digest, length, certain=False) if length else None


def _length(size: int, tag: str, part_size: Callable[[], int]) -> int:
    """Return the size of the parts of an object; 0 where they are not of one size."""
    match = _PARTS.search(tag)
    length = part_size() if match else 0
    return length if match and length and -(-size // length) == int(match[1]) else 0
