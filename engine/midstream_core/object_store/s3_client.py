"""Client of S3 and compatible services, behind the interface of `bucket_client`.

Requests go through botocore. Of an object that is read in several requests, and of a body that broke off, the rest is
requested by range.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from midstream_core.object_store import s3_errors
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, HASH, MARK, READS, StoredObject, has_bytes, hashed
from midstream_core.object_store.client_library import Answer, Client, Data, Response
from midstream_core.object_store.errors import (
    ConditionsUnsupportedError,
    DamagedObjectError,
    ObjectExistsError,
    StoreError,
)
from midstream_core.object_store.object_checksum import ObjectChecksum
from midstream_core.object_store.range_read import RangeRead, RangeReader
from midstream_core.object_store.s3_checksums import checksum_of
from midstream_core.object_store.s3_multipart import (
    MAX_PARTS,
    PARTS_AT_ONCE,
    MultipartUpload,
    groups,
    has_small,
    multipart_of,
)
from midstream_core.object_store.s3_requests import S3Requests, tag_of
from midstream_core.object_store.urls import joined

AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
WRITES = 10  # times that an object is written while others replace it
ONE_REQUEST = 64 << 20  # bytes up to which a file is written in one request


class S3Client(S3Requests, RangeReader):
    """The objects below ``s3://bucket/prefix``; see `BucketClient`."""

    def __init__(self, url: str, access: Access) -> None:
        super().__init__(url, access)
        self._conditions: bool | None = None  # None: not tried yet

    def __enter__(self) -> S3Client:
        return self

    def __exit__(self, *raised: object) -> None:
        """Do nothing: the connections belong to the process."""

    # ------------------------------------------------------------------------------------------------- reading

    def probe(self) -> None:
        self._pages(self.prefix, MaxKeys=1, single=True)

    def entries(self, below: str = "") -> dict[str, StoredObject]:
        start = self.key("x")[:-1]
        entries: dict[str, StoredObject] = {}
        for page in self._pages(start + below):
            for entry in page.get("Contents", ()):
                path = entry["Key"][len(start) :]
                updated = entry["LastModified"].timestamp()
                entries[path] = StoredObject(path, int(entry["Size"]), tag_of(entry), updated)
        return entries

    def folders(self) -> list[str]:
        start = self.key("x")[:-1]
        pages = self._pages(start, Delimiter="/")
        return sorted(
            prefix["Prefix"][len(start) :].rstrip("/") for page in pages for prefix in page.get("CommonPrefixes", ())
        )

    def _pages(self, start: str, *, single: bool = False, **more: object) -> list[Answer]:
        pages: list[Answer] = []
        token: dict[str, str] = {}
        while True:
            parameters = {"Bucket": self.bucket, "Prefix": start, **more, **token}
            page = self.request("", lambda client, parameters=parameters: client.list_objects_v2(**parameters))
            pages.append(page)
            if single or not page.get("IsTruncated"):
                return pages
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def look(self, path: str) -> StoredObject | None:
        key = self.key(path)
        with contextlib.suppress(FileNotFoundError):
            head = self.request(path, lambda client: client.head_object(Bucket=self.bucket, Key=key))
            updated = head["LastModified"].timestamp()
            recorded = head.get("Metadata", {}).get(HASH)
            return StoredObject(path, int(head["ContentLength"]), tag_of(head), updated, sha256=recorded)
        return None

    def checksum(self, stored: StoredObject) -> ObjectChecksum | None:
        named = {"Bucket": self.bucket, "Key": self.key(stored.path)}

        def head(**more: object) -> Answer:
            return self.request(
                stored.path, lambda client: client.head_object(**named, **more), conditional="IfMatch" in more
            )

        def part_size() -> int:
            with contextlib.suppress(StoreError):  # of a service that does not know parts of objects
                # Without a condition: moto compares the ETag of the part.
                return int(head(PartNumber=1)["ContentLength"])
            return 0

        return checksum_of(head(ChecksumMode="ENABLED", **_match(stored.version)), part_size)

    def get(self, path: str, version: str | None = None) -> tuple[bytes, str]:
        content = hashed_as = ""
        for _ in range(READS):
            data, tag, recorded = self._body(path, version)
            if recorded is None or hashed(data) == recorded:
                return data, tag
            content, hashed_as = recorded, hashed(data)
        raise DamagedObjectError(
            f"{joined(self.url, path)}: read {READS} times, SHA-256 is {hashed_as}, recorded was {content}",
            s3_errors.AGAIN,
        )

    def _body(self, path: str, version: str | None) -> tuple[bytes, str, str | None]:
        """Return an object's bytes, version and recorded hash."""
        parameters: dict[str, object] = {"Bucket": self.bucket, "Key": self.key(path), **_match(version)}

        def once(client: Client) -> tuple[bytes, str, str | None]:
            answer = client.get_object(**parameters)
            data = bytearray(int(answer["ContentLength"]))
            RangeRead(len(data), memoryview(data)).receive(_response(answer), len(data), self.failures[1])
            return bytes(data), tag_of(answer), answer.get("Metadata", {}).get(HASH)

        return self.request(path, once, conditional=version is not None)

    def _read(self, path: str, offset: int, length: int, reading: RangeRead, version: str | None) -> int:
        if not length:
            return 0
        parameters: dict[str, object] = {"Bucket": self.bucket, "Key": self.key(path), **_match(version)}
        client_error, failures = self.failures

        def once(client: Client) -> int:
            byte_range = f"bytes={offset + reading.arrived}-{offset + length - 1}"
            try:
                answer = client.get_object(**parameters, Range=byte_range)
            except client_error as error:
                if s3_errors.fields(error)[0] == 416:
                    return reading.arrived
                raise
            try:
                status = int(answer["ResponseMetadata"]["HTTPStatusCode"])
                reading.check_status(status, offset, joined(self.url, path))
            except StoreError:
                answer["Body"].close()
                raise
            parameters.setdefault("IfMatch", f'"{tag_of(answer)}"')  # the rest is of the same object
            reading.receive(_response(answer), int(answer["ContentLength"]), failures)
            return reading.arrived

        return self.request(path, once, conditional=version is not None)

    # ------------------------------------------------------------------------------------------------- writing

    def put(
        self, path: str, data: Data, sha256: str = "", *, part: bool = False, replaces: str | None = None
    ) -> StoredObject:
        sha256 = sha256 or hashed(data)
        body = data if isinstance(data, (bytes, bytearray)) else bytes(data)  # botocore sends no other memory
        parameters = {"Body": body, "Metadata": dict({HASH: sha256}, **({MARK: "part"} if part else {}))}

        def once(condition: dict[str, str]) -> str:
            return self.checked(path, "put_object", {**parameters, "Key": self.key(path), **condition}, sha256)

        tag = self.conditioned(path, len(data), sha256, replaces, once)
        return StoredObject(path, len(data), tag, 0.0, sha256=sha256)

    def conditioned(
        self, path: str, size: int, sha256: str, replaces: str | None, once: Callable[[dict[str, str]], str]
    ) -> str:
        """Create or replace an object on a condition; return its version.

        Errors as of `put`.

        Args:
            path: Path of the object.
            size: Its bytes; with the hash they identify an object that a lost response has written.
            sha256: Its hash.
            replaces: The only version that may be replaced (ABSENT: the object must not exist). None: any.
            once: Writes the object with the arguments of a condition, and returns its version.
        """
        where = joined(self.url, path)
        expected = ABSENT if replaces is None else replaces
        for _ in range(WRITES):
            try:
                if self.has_conditions():
                    return once({"IfMatch": f'"{expected}"'} if expected else {"IfNoneMatch": "*"})
                there = self.look(path)
                if (ABSENT if there is None else there.version) != expected:
                    raise ObjectExistsError(f"{where}: another object exists")
                return once({})
            except FileNotFoundError:  # the version to be replaced was deleted, or the upload was completed before
                error = ObjectExistsError(f"{where}: the version to be replaced was deleted")
            except ObjectExistsError as caught:
                error = caught
            stored = self.look(path)
            if stored is not None and has_bytes(stored, size, sha256):
                return stored.version
            if replaces is not None:
                raise error
            expected = ABSENT if stored is None else stored.version
        raise StoreError(f"{where}: other programs write this object at the same time", s3_errors.AGAIN)

    def put_file(self, path: str, file: str, sha256: str) -> None:
        size = os.path.getsize(file)
        if size <= ONE_REQUEST:
            with open(file, "rb") as source:
                self.put(path, source.read(), sha256, replaces=ABSENT)
            return

        def once(condition: dict[str, str]) -> str:
            with MultipartUpload(self, path, {HASH: sha256}) as upload:
                upload.send_file(file, size)
                return upload.complete(condition)

        self.conditioned(path, size, sha256, ABSENT, once)

    def join(self, path: str, parts: Iterable[StoredObject], size: int, sha256: str, temporary: str) -> StoredObject:
        """Compose an object of parts as `BucketClient.join` says.

        The parts become those of a multipart upload, copied by the service.

        Args:
            path: Path of the object.
            parts: The parts, in order.
            size: Bytes of the object.
            sha256: Hash of the object; recorded with it.
            temporary: Beginning of the names of groups, of which an object with more parts than an upload may have
                is composed.
        """
        given, made = list(parts), list[StoredObject]()
        pieces = given
        while len(pieces) > MAX_PARTS:  # of 8 MiB each where they came in a stream: 80 GB
            start, joined_lots = 0, list[StoredObject]()
            for lot in groups(pieces):
                joined_lots.append(self._joined(temporary, start, lot))
                start += joined_lots[-1].size
            pieces = joined_lots
            made += pieces

        def once(condition: dict[str, str]) -> str:
            return self._composed(path, pieces, {HASH: sha256}, condition)

        tag = self.conditioned(path, size, sha256, None, once)
        stored = self.look(path)
        if stored is None or stored.size != size:
            raise DamagedObjectError(f"{joined(self.url, path)}: the composed object has other bytes than were sent")
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            list(pool.map(self.delete, [piece.path for piece in [*given, *made]]))
        return StoredObject(path, size, tag, stored.updated, sha256=sha256)

    def _composed(
        self, path: str, parts: Sequence[StoredObject], metadata: dict[str, str], condition: dict[str, str]
    ) -> str:
        with MultipartUpload(self, path, metadata, sends=has_small(parts)) as upload:
            multipart_of(upload, parts, lambda piece: self.get(piece.path, piece.version)[0])
            return upload.complete(condition)

    def _joined(self, temporary: str, start: int, parts: Sequence[StoredObject]) -> StoredObject:
        """Compose a temporary object.

        Its name has its range: another copy's object of that name has the same bytes.
        """
        size = sum(piece.size for piece in parts)
        path = f"{temporary}-{start}-{size}"
        with contextlib.suppress(FileNotFoundError):  # the response to its completion was lost
            self._composed(path, parts, {MARK: "part"}, {})
        stored = self.look(path)
        if stored is None or stored.size != size:
            raise DamagedObjectError(f"{joined(self.url, path)}: the composed object has other bytes than were sent")
        return stored

    def delete(self, path: str, version: str | None = None) -> None:
        """Delete an object.

        Few services delete on a condition, so its version is compared before.
        """
        key = self.key(path)
        with contextlib.suppress(FileNotFoundError):
            if version is not None:
                stored = self.look(path)
                if stored is None or stored.version != version:
                    return
            self.request(path, lambda client: client.delete_object(Bucket=self.bucket, Key=key))

    # ------------------------------------------------------------------------------------------------- conditions

    def has_conditions(self) -> bool:
        """Return whether conditions work; try them once, with an object of their own.

        Amazon's service is known to have them.
        """
        with self.lock:
            if self._conditions is None:
                host = urlsplit(str(self.client.meta.endpoint_url)).hostname or ""
                self._conditions = host.endswith(AMAZON) or self._tried_conditions()
            return self._conditions

    def _tried_conditions(self) -> bool:
        path = f".conditions-{secrets.token_hex(8)}"

        def written(condition: dict[str, str]) -> bool:
            parameters = {"Bucket": self.bucket, "Key": self.key(path), "Body": b"midstream", **condition}
            try:
                self.request(path, lambda client: client.put_object(**parameters), conditional=True)
            except (ObjectExistsError, ConditionsUnsupportedError):
                return False
            return True

        self.delete(path)  # an account that may not delete is refused before there is an object that would remain
        try:  # an object is created once, not again, and is not replaced for another version's sake
            absent = {"IfNoneMatch": "*"}
            return written(absent) and not written(absent) and not written({"IfMatch": '"0123456789abcdef"'})
        finally:
            self.delete(path)


def _response(answer: Answer) -> Response:
    """Return the answer of urllib3 below that of botocore."""
    return answer["Body"]._raw_stream  # noqa: SLF001  there is no public way to the socket


def _match(version: str | None) -> dict[str, str]:
    return {} if version is None else {"IfMatch": f'"{version}"'}
