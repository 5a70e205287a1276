"""Client of Google Cloud Storage, behind the interface of `bucket_client`.

Requests go through google-cloud-storage.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from midstream_core.object_store import retries
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, HASH, MARK, READS, StoredObject, has_bytes, hashed
from midstream_core.object_store.client_library import Blob, Data, Retry, library
from midstream_core.object_store.errors import AccessDeniedError, DamagedObjectError, ObjectExistsError, StoreError
from midstream_core.object_store.gcs_errors import LOGIN, is_transient, no_bucket, translate_errors
from midstream_core.object_store.gcs_session import open_storage
from midstream_core.object_store.joined_crc32c import combined, crc_number, crc_text
from midstream_core.object_store.object_checksum import ObjectChecksum, decoded
from midstream_core.object_store.range_read import RangeRead, RangeReader
from midstream_core.object_store.urls import joined, split_url

COMPOSED = 32  # objects that the service joins in one request
REQUEST_TIMEOUT = 60.0  # seconds without a byte after which a connection counts as dead
BINARY = "application/octet-stream"
GENERATION = "x-goog-generation"

T = TypeVar("T")


def _retry() -> Retry:
    """Return the retry of transient failures, with the times of `retries`."""
    default = library("google.cloud.storage.retry").DEFAULT_RETRY
    pauses = {"initial": retries.FIRST_PAUSE, "maximum": retries.MAX_PAUSE, "multiplier": 2.0}
    return default.with_predicate(is_transient).with_delay(**pauses).with_timeout(retries.RETRY_TIMEOUT)


class GcsClient(RangeReader):
    """The objects below ``gs://bucket/prefix``; see `BucketClient`."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url.rstrip("/")
        _, self.bucket, self.prefix = split_url(url)
        self._storage, self._anonymous = open_storage(access)
        self._public = access.public
        self._bucket = self._storage.bucket(self.bucket, user_project=access.user_project or None)
        self._exists = False  # the bucket; known once any request has succeeded
        self._lock = threading.Lock()
        self._conditions: bool | None = None  # None: not tried yet

    def __enter__(self) -> GcsClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self._storage.close()

    def has_conditions(self) -> bool:
        """Return whether conditions work.

        Google's service is known to have them. With an emulator they are tried once, on an object of their own.
        """
        with self._lock:
            if self._conditions is None:
                self._conditions = "STORAGE_EMULATOR_HOST" not in os.environ or self._tried_conditions()
            return self._conditions

    def _tried_conditions(self) -> bool:
        path = f".conditions-{secrets.token_hex(8)}"
        with contextlib.suppress(ObjectExistsError), self._errors(path, of_bucket=True):
            # There is no such version to replace: an object is created only where the condition is ignored.
            self._blob(path).upload_from_string(b"midstream", BINARY, if_generation_match=1, **self._patience())
            self.delete(path)
            return False
        return True

    def _check_version(self, path: str, expected: str) -> None:
        """Raise ObjectExistsError for another version than ``expected``.

        No effect where the service compares versions.
        """
        if not self.has_conditions():
            there = self.look(path)
            if (ABSENT if there is None else there.version) != expected:
                raise ObjectExistsError(f"{joined(self.url, path)}: another object exists")

    # ------------------------------------------------------------------------------------------------- requests

    @contextlib.contextmanager
    def _errors(self, path: str = "", *, of_bucket: bool = False) -> Generator[None, None, None]:
        """Translate the errors of one request.

        A missing object's bucket is looked for, once.
        """
        where = joined(self.url, path)
        try:
            with translate_errors(where, of_bucket=of_bucket):
                yield
        except FileNotFoundError:
            self._check_bucket()
            raise
        except AccessDeniedError as error:
            if self._public and self._anonymous:
                text = f"{where}: not public, and there are no credentials here: {error.message}"
                raise AccessDeniedError(text, LOGIN) from error
            raise
        self._exists = True

    def _check_bucket(self) -> None:
        """Raise BucketMissingError if the bucket does not exist.

        The answer for a missing object is the same 404.
        """
        if self._exists:
            return
        exceptions = library("google.api_core.exceptions")
        try:
            listing = self._storage.list_blobs(self._bucket, max_results=1, **self._patience())
            next(iter(listing), None)
        except exceptions.NotFound:
            raise no_bucket(self.url) from None
        except exceptions.GoogleAPIError:
            return  # an account that may read objects need not be allowed to list them
        self._exists = True

    def _patience(self) -> dict[str, Any]:
        return {"retry": _retry(), "timeout": REQUEST_TIMEOUT}

    def _blob(self, path: str) -> Blob:
        return self._bucket.blob(joined(self.prefix, path))

    def _start(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    # ------------------------------------------------------------------------------------------------- reading

    def probe(self) -> None:
        with self._errors(of_bucket=True):
            listing = self._storage.list_blobs(self._bucket, prefix=self.prefix, max_results=1, **self._patience())
            next(iter(listing), None)

    def entries(self, below: str = "") -> dict[str, StoredObject]:
        start = self._start()
        with self._errors(of_bucket=True):
            blobs = self._storage.list_blobs(self._bucket, prefix=start + below, **self._patience())
            return {blob.name[len(start) :]: _described(blob, blob.name[len(start) :]) for blob in blobs}

    def folders(self) -> list[str]:
        start = self._start()
        with self._errors(of_bucket=True):
            listing = self._storage.list_blobs(self._bucket, prefix=start, delimiter="/", **self._patience())
            for _ in listing:  # prefixes come with the pages
                continue
            return sorted(prefix[len(start) :].rstrip("/") for prefix in listing.prefixes)

    def look(self, path: str) -> StoredObject | None:
        with contextlib.suppress(FileNotFoundError), self._errors(path):
            blob = self._blob(path)
            blob.reload(**self._patience())
            return _described(blob, path)
        return None

    def checksum(self, stored: StoredObject) -> ObjectChecksum | None:
        digest = decoded(stored.crc32c)
        return ObjectChecksum("crc32c", digest) if digest else None

    def get(self, path: str, version: str | None = None) -> tuple[bytes, str]:
        blob = self._blob(path)

        def once() -> bytes:
            with self._errors(path):
                return blob.download_as_bytes(
                    if_generation_match=_generation(version), checksum="crc32c", **self._patience()
                )

        data = _read_again(once)
        if blob.generation is None:  # an emulator answers without it
            with self._errors(path):
                blob.reload(**self._patience())
        return data, str(blob.generation)

    def _read(self, path: str, offset: int, length: int, reading: RangeRead, version: str | None) -> int:
        """Read a range; return how many bytes arrived.

        The library's own downloads receive 8 KiB at a time and join them, so only its session and retry are used.
        """
        if not length:
            return 0
        exceptions = library("google.api_core.exceptions")
        blob, pinned = self._blob(path), _generation(version)

        def once() -> None:
            nonlocal pinned
            url = blob._get_download_url(self._storage, if_generation_match=pinned)
            # The bytes as they are stored: an object with a content encoding would be decoded by the service.
            headers = {"Range": f"bytes={offset + reading.arrived}-{offset + length - 1}", "Accept-Encoding": "gzip"}
            answer = self._storage._http.get(url, headers=headers, stream=True, timeout=REQUEST_TIMEOUT)
            if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise exceptions.from_http_response(answer)
            try:
                reading.check_status(answer.status_code, offset, joined(self.url, path))
            except StoreError:
                answer.close()
                raise
            if pinned is None and answer.headers.get(GENERATION, "").isdecimal():
                pinned = int(answer.headers[GENERATION])  # the rest is of the same object
            size = answer.headers.get("Content-Length", "")
            reading.receive(answer.raw, int(size) if size.isdecimal() else None)

        with self._errors(path), contextlib.suppress(exceptions.RequestRangeNotSatisfiable):
            _retry()(once)()
        return reading.arrived

    # ------------------------------------------------------------------------------------------------- writing

    def put(
        self, path: str, data: Data, sha256: str = "", *, part: bool = False, replaces: str | None = None
    ) -> StoredObject:
        sha256 = sha256 or hashed(data)
        crc = crc_text(library("google_crc32c").value(bytes(data)))
        expected = ABSENT if replaces is None else replaces
        while True:
            blob = self._blob(path)
            blob.metadata = dict({HASH: sha256}, **({MARK: "part"} if part else {}))
            try:
                self._check_version(path, expected)
                with self._errors(path, of_bucket=True):
                    blob.upload_from_file(
                        io.BytesIO(data), size=len(data), content_type=BINARY, checksum="crc32c",
                        if_generation_match=_generation(expected), **self._patience(),
                    )  # fmt: skip
                break
            except ObjectExistsError:
                there = self.look(path)
                if there is not None and has_bytes(there, len(data), sha256):
                    return there
                if replaces is not None:
                    raise
                expected = ABSENT if there is None else there.version
        if blob.crc32c != crc:
            where = joined(self.url, path)
            raise DamagedObjectError(f"{where}: the bucket has crc32c {blob.crc32c}, not {crc} as sent")
        return _described(blob, path)

    def put_file(self, path: str, file: str, sha256: str) -> None:
        blob = self._blob(path)
        blob.metadata = {HASH: sha256}
        try:
            self._check_version(path, ABSENT)
            with self._errors(path, of_bucket=True):
                blob.upload_from_filename(file, BINARY, if_generation_match=0, checksum="crc32c", **self._patience())
        except ObjectExistsError:
            if not has_bytes(self.look(path), os.path.getsize(file), sha256):
                raise

    def join(self, path: str, parts: Iterable[StoredObject], size: int, sha256: str, temporary: str) -> StoredObject:
        given = list(parts)
        crc = crc_text(combined([(crc_number(piece.crc32c), piece.size) for piece in given]))
        made: list[StoredObject] = []
        pieces = given
        while len(pieces) > COMPOSED:
            lots = [pieces[i : i + COMPOSED] for i in range(0, len(pieces), COMPOSED)]
            pieces = [self._compose(f"{temporary}-{len(made)}-{i}", lot) for i, lot in enumerate(lots)]
            made += pieces
        there = self.look(path)
        try:
            version = self._compose(path, pieces, sha256, ABSENT if there is None else there.version)
        except ObjectExistsError:
            again = self.look(path)  # created by this request, whose response was lost and which the client repeated
            if again is None or not has_bytes(again, size, sha256):
                raise
            version = again
        if (version.size, version.crc32c) != (size, crc):
            raise DamagedObjectError(f"{joined(self.url, path)}: the composed object has other bytes than were sent")
        for blob in [*given, *made]:
            self.delete(blob.path, blob.version)
        return version

    def _compose(
        self, path: str, parts: Sequence[StoredObject], sha256: str = "", replaces: str | None = None
    ) -> StoredObject:
        blob = self._blob(path)
        blob.metadata = {HASH: sha256} if sha256 else {MARK: "part"}
        with self._errors(path):
            blob.content_type = BINARY
            blob.compose(
                [self._blob(piece.path) for piece in parts], if_generation_match=_generation(replaces),
                if_source_generation_match=[int(part.version) for part in parts], **self._patience(),
            )  # fmt: skip
        return _described(blob, path)

    def delete(self, path: str, version: str | None = None) -> None:
        with contextlib.suppress(FileNotFoundError, ObjectExistsError), self._errors(path):
            self._blob(path).delete(if_generation_match=_generation(version), **self._patience())


def _generation(version: str | None) -> int | None:
    """Return the generation of a version: 0 for ABSENT."""
    return None if version is None else int(version or 0)


def _described(blob: Blob, path: str) -> StoredObject:
    updated = blob.updated.timestamp() if blob.updated else 0.0
    metadata: dict[str, str] = blob.metadata or {}
    return StoredObject(path, int(blob.size or 0), str(blob.generation), updated, blob.crc32c or "", metadata.get(HASH))


def _read_again(once: Callable[[], T]) -> T:
    """Return the result of a read.

    A read whose bytes have a wrong checksum is repeated, `READS` times in all.
    """
    for _ in range(READS - 1):
        with contextlib.suppress(DamagedObjectError):
            return once()
    return once()
