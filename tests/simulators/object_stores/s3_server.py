"""An S3 server on loopback: as much of the protocol as its clients use, kept in memory.

botocore, awscli, rclone and s5cmd talk to it: objects, ranges, conditional writes, multipart uploads with parts that
are uploaded or copied, checksums, listings with pages and delimiters. Signatures are not checked; access keys and
session tokens are, if `S3Server.admits` names some. Faults can be planted.
API: https://docs.aws.amazon.com/AmazonS3/latest/API/

    with s3_server("runs") as server:
        environment = server.environment     # for processes that shall use it
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import hashlib
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from urllib.parse import unquote
from xml.etree import ElementTree

import google_crc32c

from simulators.object_stores.bucket_objects import Blob, RefusedError
from simulators.object_stores.object_service import Answer, ObjectHandler, ObjectService
from simulators.object_stores.s3_messages import (
    completed,
    copied,
    error,
    listed_buckets,
    listed_objects,
    listed_parts,
    started,
    xml,
)
from simulators.planted_faults import garbled

SMALLEST_PART = 5 << 20  # bytes; of all parts of an upload but the last
SKEW = 900.0  # seconds that a client's clock may differ
PRECONDITION = "At least one of the pre-conditions you specified did not hold"
CONDITIONAL, REFUSED, IGNORED = "conditional", "refused", "ignored"  # what becomes of If-None-Match and If-Match

_HASHES: dict[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha1": lambda data: hashlib.sha1(data).digest(),
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: google_crc32c.value(data).to_bytes(4, "big"),
}


@dataclasses.dataclass
class _Upload:
    """A multipart upload in progress."""

    bucket: str
    name: str
    metadata: dict[str, str]
    checksum: str  # of its parts: sha256, ...; empty without one
    parts: dict[int, Blob] = dataclasses.field(default_factory=dict)


class S3Server(ObjectService[_Upload]):
    """Buckets in memory, served by threads of this process.

    Attributes:
        admits: Access key -> session token (or empty) of the accepted requests. Empty: anyone may do anything.
        public: Whether requests without a signature may read.
        writes: What becomes of conditional writes.
        checksums: Whether ``x-amz-checksum-*`` is checked and answered, which older services ignore.
    """

    def __init__(self) -> None:
        super().__init__(_Handler, "s3")
        self.admits: dict[str, str] = {}
        self.public = False
        self.writes = CONDITIONAL
        self.checksums = True
        self.signed_hashes: list[str] = []  # of bodies, as the signatures name them
        self.md5_sent = 0  # bodies that arrived with Content-MD5
        self.garbled_bodies = 0  # the next so many bodies change on their way to the service

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of this server's clients."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def upload(self, identity: str) -> _Upload:
        with self.lock:
            if identity not in self.uploads:
                raise RefusedError(404, "The specified upload does not exist", "NoSuchUpload")
            return self.uploads[identity]


class _Handler(ObjectHandler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        bucket, _, name = unquote(path.lstrip("/")).partition("/")
        self._admitted(self.command)
        return self._route(self.command, bucket, name, query, body)

    def refused(self, refusal: RefusedError) -> Answer:
        status, headers, data = error(refusal)
        return status, headers, b"" if self.command == "HEAD" else data

    def body(self) -> bytes:
        body = super().body()
        if not self.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            return body
        found, start = bytearray(), 0  # chunks of the protocol's own: SIZE[;signature], bytes
        while True:
            end = body.index(b"\r\n", start)
            size = int(body[start:end].split(b";")[0], 16)
            if not size:
                return bytes(found)
            found += body[end + 2 : end + 2 + size]
            start = end + 4 + size

    def _admitted(self, method: str) -> None:
        """RefusedError if a request has no accepted access key, an expired token, or a time of another day."""
        server = self.server_of
        key = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        if key is None:
            if server.admits and not (server.public and method in ("GET", "HEAD")):
                raise RefusedError(403, "Access Denied", "AccessDenied")
            return
        if server.admits:
            if key[1] not in server.admits:
                raise RefusedError(403, "The access key that you provided does not exist", "InvalidAccessKeyId")
            if self.headers.get("x-amz-security-token", "") != server.admits[key[1]]:
                raise RefusedError(400, "The provided token has expired.", "ExpiredToken")
        stamp = self.headers.get("x-amz-date", "")
        if stamp:
            given = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
            if abs(given.timestamp() - server.now()) > SKEW:
                raise RefusedError(
                    403, "The difference between the request time and the current time is too large.",
                    "RequestTimeTooSkewed",
                )  # fmt: skip

    # ---------------------------------------------------------------------------------------------- requests

    def _route(self, method: str, bucket: str, name: str, query: dict[str, str], body: bytes) -> Answer:
        server = self.server_of
        if not bucket:
            return listed_buckets(list(server.buckets))
        if not name:
            return self._of_bucket(method, bucket, query, body)
        if "uploadId" in query or "uploads" in query:
            return self._multipart(method, bucket, name, query, body)
        if method == "PUT":
            return self._put(bucket, name, body)
        if method == "DELETE":
            with server.lock:
                found = server.bucket(bucket).get(name)
                self._check(found)
                server.bucket(bucket).pop(name, None)
            return 204, {}, b""
        blob = server.get(bucket, name, {})
        if self.headers.get("If-Match", etag(blob)).strip('"') != etag(blob):
            raise RefusedError(412, PRECONDITION, "PreconditionFailed")
        return self._media(blob, method)

    def _of_bucket(self, method: str, bucket: str, query: dict[str, str], body: bytes) -> Answer:
        server = self.server_of
        if method == "PUT":
            server.create(bucket)
            return 200, {"Location": f"/{bucket}"}, b""
        server.bucket(bucket)
        if "delete" in query:
            for each in ElementTree.fromstring(body).iter():
                if each.tag.endswith("Key"):
                    with server.lock:
                        server.bucket(bucket).pop(each.text or "", None)
            return xml("DeleteResult", [])
        if method == "HEAD":
            return 200, {}, b""
        if "location" in query:
            return xml("LocationConstraint", [])
        if "uploads" in query:
            return xml("ListMultipartUploadsResult", [("Bucket", bucket)])
        wanted = {
            "prefix": query.get("prefix", ""),
            "delimiter": query.get("delimiter", ""),
            "maxResults": query.get("max-keys", "1000"),
            "pageToken": query.get("continuation-token") or query.get("start-after") or query.get("marker") or "",
        }
        page, following = server.page(bucket, wanted)
        return listed_objects(bucket, query, page, following, etag)

    def _put(self, bucket: str, name: str, body: bytes) -> Answer:
        server = self.server_of
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            blob = self._source(source)
            made = server.put(bucket, name, blob.data, metadata=blob.metadata)
            return copied("CopyObjectResult", etag(made))
        checks = self._checked(body)
        with self._conditions(bucket, name):
            made = server.put(bucket, name, body, metadata=self._metadata())
        return 200, {"ETag": f'"{etag(made)}"', **checks}, b""

    def _begun(self, bucket: str, name: str) -> _Upload:
        checksum = self.headers.get("x-amz-checksum-algorithm", "").lower() if self.server_of.checksums else ""
        return _Upload(bucket, name, self._metadata(), checksum)

    def _source(self, given: str) -> Blob:
        from_bucket, _, from_name = unquote(given).lstrip("/").partition("/")
        blob = self.server_of.get(from_bucket, from_name.partition("?")[0], {})
        if self.headers.get("x-amz-copy-source-if-match", etag(blob)).strip('"') != etag(blob):
            raise RefusedError(412, "The source has another ETag", "PreconditionFailed")
        return blob

    def _metadata(self) -> dict[str, str]:
        start = "x-amz-meta-"
        return {
            key.lower()[len(start) :]: value for key, value in self.headers.items() if key.lower().startswith(start)
        }

    def _checked(self, body: bytes) -> dict[str, str]:
        """Check the hashes that the request has; return the headers of the answer."""
        server = self.server_of
        with server.lock:
            if server.garbled_bodies:
                server.garbled_bodies -= 1
                body = garbled(body)
            given = self.headers.get("Content-MD5")
            server.md5_sent += given is not None
            server.signed_hashes.append(self.headers.get("x-amz-content-sha256", ""))
        if given and base64.b64decode(given) != hashlib.md5(body).digest():
            raise RefusedError(400, "The Content-MD5 you specified did not match what we received.", "BadDigest")
        found = {}
        for name, hashed in _HASHES.items() if self.server_of.checksums else ():
            expected = self.headers.get(f"x-amz-checksum-{name}")
            if expected:
                signed = self.headers.get("x-amz-content-sha256", "")
                if name == "sha256" and len(signed) == 64 and bytes.fromhex(signed) != base64.b64decode(expected):
                    raise RefusedError(
                        400, "The provided 'x-amz-content-sha256' header does not match what was computed.",
                        "XAmzContentSHA256Mismatch",
                    )  # fmt: skip
                if base64.b64decode(expected) != hashed(body):
                    raise RefusedError(400, f"The {name.upper()} you specified did not match.", "BadDigest")
                found[f"x-amz-checksum-{name}"] = expected
        return found

    @contextlib.contextmanager
    def _conditions(self, bucket: str, name: str) -> Iterator[None]:
        """Hold what If-None-Match and If-Match demand until the object is there: one writer at a time."""
        with _WRITING:
            with self.server_of.lock:
                found = self.server_of.bucket(bucket).get(name)
            self._check(found)
            yield

    def _check(self, found: Blob | None) -> None:
        absent, same = self.headers.get("If-None-Match"), self.headers.get("If-Match")
        if (absent is None and same is None) or self.server_of.writes == IGNORED:
            return
        if self.server_of.writes == REFUSED:
            raise RefusedError(
                501, "A header you provided implies functionality that is not implemented", "NotImplemented"
            )
        if absent == "*" and found is not None:
            raise RefusedError(412, PRECONDITION, "PreconditionFailed")
        if same is not None and found is None:
            raise RefusedError(404, "The specified key does not exist.", "NoSuchKey")
        if same is not None and found is not None and same.strip('"') != etag(found):
            raise RefusedError(412, PRECONDITION, "PreconditionFailed")

    def _media(self, blob: Blob, method: str) -> Answer:
        headers = {
            "Content-Type": blob.content_type or "application/octet-stream",
            "ETag": f'"{etag(blob)}"',
            "Last-Modified": formatdate(blob.updated, usegmt=True),
            "Accept-Ranges": "bytes",
            **{f"x-amz-meta-{key}": value for key, value in blob.metadata.items()},
        }
        total = len(blob.data)
        if method == "GET":
            self.server_of.ranges.append(self.headers.get("Range", ""))
        wanted = self.byte_range(total)
        reported = self.server_of.checksums and self.headers.get("x-amz-checksum-mode") == "ENABLED"
        if reported and wanted is None:  # a range has no checksum of its own
            headers["x-amz-checksum-crc32"] = _hash("crc32", blob.data)
            headers["x-amz-checksum-type"] = "FULL_OBJECT"
        if wanted is None:
            return 200, {**headers, "Content-Length": str(total)}, blob.data
        first, end = wanted
        data = blob.data[first:end] if method == "GET" else b""
        return (
            206,
            {**headers, "Content-Range": f"bytes {first}-{end - 1}/{total}", "Content-Length": str(end - first)},
            data,
        )

    def _multipart(self, method: str, bucket: str, name: str, query: dict[str, str], body: bytes) -> Answer:
        server = self.server_of
        if "uploads" in query:
            return started(bucket, name, server.begin_upload(self._begun(bucket, name)))
        upload = server.upload(query["uploadId"])
        if method == "PUT":
            number = int(query["partNumber"])
            source = self.headers.get("x-amz-copy-source")
            if source is None:
                checks = self._checked(body)
                if any(header != f"x-amz-checksum-{upload.checksum}" for header in checks):
                    raise RefusedError(400, "Checksum Type mismatch occurred", "InvalidRequest")
                upload.parts[number] = part = _part(body)
                return 200, {"ETag": f'"{etag(part)}"', **checks}, b""
            data = self._source(source).data
            given = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("x-amz-copy-source-range", ""))
            upload.parts[number] = part = _part(data[int(given[1]) : int(given[2]) + 1] if given else data)
            checks = (
                {f"Checksum{upload.checksum.upper()}": _hash(upload.checksum, part.data)} if upload.checksum else {}
            )
            return copied("CopyPartResult", etag(part), checks)
        if method == "GET":
            return listed_parts(bucket, name, upload.parts, etag)
        if method == "DELETE":
            del server.uploads[query["uploadId"]]
            return 204, {}, b""
        elements = list(ElementTree.fromstring(body).iter())
        tags = [each.tag.rpartition("}")[2] for each in elements]
        if upload.checksum and tags.count(f"Checksum{upload.checksum.upper()}") < tags.count("Part"):
            text = f"The upload was created using a {upload.checksum} checksum. The complete request must include the"
            raise RefusedError(400, f"{text} checksum for each part.", "InvalidRequest")
        numbers = [
            int(each.text or 0) for each in ElementTree.fromstring(body).iter() if each.tag.endswith("PartNumber")
        ]
        if any(number not in upload.parts for number in numbers) or numbers != sorted(set(numbers)):
            raise RefusedError(400, "One or more of the specified parts could not be found", "InvalidPart")
        parts = [upload.parts[number] for number in numbers]
        if any(len(part.data) < SMALLEST_PART for part in parts[:-1]):
            raise RefusedError(400, "Your proposed upload is smaller than the minimum allowed size", "EntityTooSmall")
        mark = hashlib.md5(b"".join(hashlib.md5(part.data[:4096]).digest() for part in parts)).hexdigest()
        with self._conditions(bucket, name):
            made = server.put(
                bucket, name, b"".join(part.data for part in parts), metadata=upload.metadata,
                etag=f"{mark}-{len(parts)}",
            )  # fmt: skip
            del server.uploads[query["uploadId"]]
        return completed(bucket, name, etag(made))


_WRITING = threading.RLock()


def _hash(name: str, data: bytes) -> str:
    return base64.b64encode(_HASHES[name](data)).decode()


def _part(data: bytes) -> Blob:
    return Blob("", "", data, 0, "", {}, 0.0)


def etag(blob: Blob) -> str:
    """Return an object's ETag. It is no MD5, as that of an encrypted object; a dash says so, as in those of parts."""
    return blob.etag or f"{blob.generation:032x}-1"


@contextlib.contextmanager
def s3_server(*buckets: str) -> Iterator[S3Server]:
    """Context with a running server that has these buckets."""
    with S3Server() as server:
        for bucket in buckets:
            server.create(bucket)
        yield server
