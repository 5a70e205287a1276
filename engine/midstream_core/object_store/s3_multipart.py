"""Multipart uploads of S3: an object of parts sent, or copied by the service."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from midstream_core.object_store.bucket_client import CHUNK, StoredObject
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.s3_requests import S3Requests
from midstream_core.object_store.urls import joined

MIN_PART = 5 << 20  # bytes; of all parts of an upload but the last
MAX_PARTS = 10_000
MAX_COPY = 1 << 30  # bytes of a part that the service copies: 5 GiB are its limit, and the request has a timeout
PARTS_AT_ONCE = 8  # parts of a file in memory


class MultipartUpload:
    """An upload of one object.

    If the context is left without `complete`, the parts are deleted.
    """

    def __init__(self, requests: S3Requests, path: str, metadata: dict[str, str], *, sends: bool = True) -> None:
        """Prepare an upload.

        Args:
            requests: Of the bucket.
            path: Path of the object.
            metadata: Recorded with the object.
            sends: Whether parts will be sent, with their checksums. Parts that the service copies were checked before;
                it would hash them again.
        """
        self.requests, self.path = requests, path
        self._checksums = {"ChecksumAlgorithm": "SHA256"} if sends else {}
        self._parameters = {"Bucket": requests.bucket, "Key": requests.key(path)}
        self._metadata = metadata
        self._parts: dict[int, dict[str, str]] = {}  # number -> ETag, and the checksum if it is known
        self._identity = ""

    def __enter__(self) -> MultipartUpload:
        started = self.requests.request(
            self.path,
            lambda client: client.create_multipart_upload(
                **self._parameters, Metadata=self._metadata, **self._checksums
            ),
        )
        self._identity = started["UploadId"]
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._identity:
            return
        with contextlib.suppress(StoreError, FileNotFoundError):  # a lifecycle rule of the bucket deletes it, too
            self.requests.request(
                self.path, lambda client: client.abort_multipart_upload(**self._parameters, UploadId=self._identity)
            )

    def _of(self, number: int) -> dict[str, object]:
        return {**self._parameters, "UploadId": self._identity, "PartNumber": number}

    def send(self, number: int, data: bytes | bytearray) -> None:
        """Send a part."""
        digest = hashlib.sha256(data)
        tag = self.requests.checked(self.path, "upload_part", {**self._of(number), "Body": data}, digest.hexdigest())
        checksum = base64.b64encode(digest.digest()).decode()
        self._parts[number] = {"ETag": f'"{tag}"', **({} if self.requests.sends_md5 else {"ChecksumSHA256": checksum})}

    def copy(self, number: int, part: StoredObject) -> None:
        """Let the service copy a part from an object of that version."""
        source = {"Bucket": self.requests.bucket, "Key": self.requests.key(part.path)}
        try:
            answer = self.requests.request(
                part.path,
                lambda client: client.upload_part_copy(
                    **self._of(number), CopySource=source, CopySourceIfMatch=f'"{part.version}"'
                ),
            )
        except (FileNotFoundError, ObjectExistsError):
            where = joined(self.requests.url, part.path)
            raise StoreError(f"{where} was deleted: another copy writes to this prefix", "run it again") from None
        copied = answer["CopyPartResult"]
        self._parts[number] = {name: copied[name] for name in ("ETag", "ChecksumSHA256") if name in copied}

    def send_file(self, file: str, size: int) -> None:
        """Send a file in parts, several at a time."""
        length = max(2 * CHUNK, -(-size // MAX_PARTS))

        def send(number: int) -> None:
            with open(file, "rb") as source:
                source.seek((number - 1) * length)
                self.send(number, source.read(length))

        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            list(pool.map(send, range(1, -(-size // length) + 1)))

    def complete(self, condition: dict[str, str]) -> str:
        """Make the object of its parts, on a condition; return its ETag."""
        parts = [{"PartNumber": number, **uploaded} for number, uploaded in sorted(self._parts.items())]
        answer = self.requests.request(
            self.path,
            lambda client: client.complete_multipart_upload(
                **self._parameters, UploadId=self._identity, MultipartUpload={"Parts": parts}, **condition
            ),
            conditional=bool(condition),
        )
        self._identity = ""
        return str(answer["ETag"]).strip('"')


def multipart_of(upload: MultipartUpload, parts: Iterable[StoredObject], read: Callable[[StoredObject], bytes]) -> None:
    """Give an upload the bytes of objects, in order.

    Pieces that are too small for a part are read and sent.
    """
    lots = _lots(list(parts))

    def give(pair: tuple[int, Sequence[StoredObject]]) -> None:
        number, lot = pair
        if len(lot) == 1:
            upload.copy(number, lot[0])
        else:
            upload.send(number, b"".join(map(read, lot)))

    with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
        list(pool.map(give, enumerate(lots, 1)))


def groups(parts: Sequence[StoredObject]) -> Iterator[list[StoredObject]]:
    """Yield the parts in groups, each of which the service can copy as one part."""
    group: list[StoredObject] = []
    for piece in parts:
        if group and (len(group) == MAX_PARTS or sum(member.size for member in group) + piece.size > MAX_COPY):
            yield group
            group = []
        group.append(piece)
    yield group


def has_small(parts: Sequence[StoredObject]) -> bool:
    """Return whether some parts are too small to be copied by the service."""
    return any(len(lot) > 1 for lot in _lots(parts))


def _lots(parts: Sequence[StoredObject]) -> list[list[StoredObject]]:
    """Return the parts in lots that are large enough, but the last."""
    lots: list[list[StoredObject]] = []
    for piece in parts:
        if lots and sum(member.size for member in lots[-1]) < MIN_PART:
            lots[-1].append(piece)
        else:
            lots.append([piece])
    return lots
