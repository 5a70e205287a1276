"""A bucket server on loopback: as much of Cloud Storage's JSON API as its clients use, kept in memory.

TensorStore's ``gcs`` driver and the unmodified google-cloud-storage client talk to it: media, multipart and resumable
uploads, ranges, preconditions on generations, listings with pages, prefixes and delimiters, metadata with crc32c and
md5, copies, compositions, deletion. Faults can be planted: status codes, answers that break off, connections that
close. API: https://cloud.google.com/storage/docs/json_api/v1

    with BucketServer() as server:
        server.create("runs")
        environment = server.environment     # for processes that shall use it
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from email.parser import BytesParser
from typing import Any
from urllib.parse import unquote, urlsplit

from simulators.object_stores.bucket_objects import Blob, RefusedError
from simulators.object_stores.object_service import Answer, ObjectHandler, ObjectService

COMPOSED = 32  # objects that are joined by one request
CHUNK = 256 << 10  # resumable uploads come in multiples of this many bytes


@dataclasses.dataclass
class _Upload:
    """A resumable upload in progress."""

    bucket: str
    query: dict[str, str]
    resource: dict[str, Any]
    content_type: str
    data: bytearray = dataclasses.field(default_factory=bytearray)
    done: Blob | None = None


class BucketServer(ObjectService[_Upload]):
    """Buckets in memory, served by threads of this process."""

    def __init__(self) -> None:
        super().__init__(_Handler, "bucket")
        self.requester_pays: set[str] = set()  # buckets
        self.admits: str | None = None  # the token that requests have to carry; empty: they must have none; None: any
        self.sent = 0  # bytes of objects' contents that were answered

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of this server's clients."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GOOGLE_CLOUD_PROJECT": "lab",
            "NO_GCE_CHECK": "true",  # do not look for a metadata server
        }

    def finish_upload(self, upload: _Upload) -> Blob:
        given = upload.resource
        name = given.get("name") or upload.query.get("name")
        if not name:
            raise RefusedError(400, "Required parameter: name")
        return self.put(
            upload.bucket, name, bytes(upload.data), upload.query, crc32c=given.get("crc32c"),
            md5=given.get("md5Hash"), metadata=given.get("metadata"),
            content_type=given.get("contentType") or upload.content_type,
        )  # fmt: skip


_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
_COPY = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)")
_COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")
_LISTING = re.compile(r"/storage/v1/b/([^/]+)/o")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)")
_LAYOUT = re.compile(r"/storage/v1/b/([^/]+)/storageLayout")
_UPLOAD = re.compile(r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o")


class _Handler(ObjectHandler):
    def answer(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        self._admitted()
        self._pays(path, query)
        return self._route(self.command, path, query, body)

    def refused(self, refusal: RefusedError) -> Answer:
        if refusal.status == 304:
            return 304, {}, b""
        error = {"code": refusal.status, "message": str(refusal), "errors": [{"reason": refusal.code or "lab"}]}
        return refusal.status, {"Content-Type": "application/json"}, json.dumps({"error": error}).encode()

    def _route(self, method: str, path: str, query: dict[str, str], body: bytes) -> Answer:
        server = self.server_of
        if match := _UPLOAD.fullmatch(path):
            return self._upload(method, unquote(match[1]), query, body)
        if match := _COPY.fullmatch(path):
            bucket, name, how, to_bucket, to_name = (unquote(part) for part in match.groups())
            return self._copy(bucket, name, how, to_bucket, to_name, query)
        if match := _COMPOSE.fullmatch(path):
            bucket, request = unquote(match[1]), json.loads(body)
            data = _joined(server, bucket, request["sourceObjects"])
            given = request.get("destination", {})
            more = {"metadata": given.get("metadata"), "content_type": given.get("contentType", "")}
            more["components"] = len(request["sourceObjects"])
            return _json(server.put(bucket, unquote(match[2]), data, query, **more).resource())
        if match := _OBJECT.fullmatch(path):
            bucket, name = unquote(match[1]), unquote(match[2])
            if method == "DELETE":
                server.delete(bucket, name, query)
                return 204, {}, b""
            blob = server.get(bucket, name, query)
            return self._media(blob) if query.get("alt") == "media" else _json(blob.resource(server.url))
        if (match := _LISTING.fullmatch(path)) and method == "GET":
            return _json(server.listing(unquote(match[1]), query))
        if path == "/storage/v1/b" and method == "POST":
            name = json.loads(body)["name"]
            server.create(name)
            return _json({"kind": "storage#bucket", "id": name, "name": name})
        if (match := _LAYOUT.fullmatch(path)) and method == "GET":
            return _json({"kind": "storage#storageLayout", "bucket": unquote(match[1]), "location": "LAB"})
        if (match := _BUCKET.fullmatch(path)) and method == "GET":
            if unquote(match[1]) not in server.buckets:
                raise RefusedError(404, "The specified bucket does not exist")
            return _json({"kind": "storage#bucket", "id": unquote(match[1]), "name": unquote(match[1])})
        raise RefusedError(501, f"{method} {path} is not served in the lab")

    def _admitted(self) -> None:
        """RefusedError if a request lacks the expected token, or if no token is accepted."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server_of.admits not in (None, token):
            raise RefusedError(401, f"Invalid Credentials: {token or 'none'}")

    def _pays(self, path: str, query: dict[str, str]) -> None:
        match = re.search(r"/b/([^/]+)", path)
        if match and unquote(match[1]) in self.server_of.requester_pays and "userProject" not in query:
            raise RefusedError(400, "Bucket is a requester pays bucket but no user project provided.")

    def _media(self, blob: Blob) -> Answer:
        headers = {
            "Content-Type": blob.content_type or "application/octet-stream",
            "x-goog-generation": str(blob.generation),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(len(blob.data)),
            "x-goog-hash": f"crc32c={blob.crc32c}" + ("" if blob.components else f",md5={blob.md5}"),
            "ETag": f"g{blob.generation}",
        }
        total = len(blob.data)
        self.server_of.ranges.append(self.headers.get("Range", ""))
        wanted = self.byte_range(total)
        if wanted is None:
            self._count(total)
            return 200, headers, blob.data
        first, end = wanted
        self._count(end - first)
        return 206, {**headers, "Content-Range": f"bytes {first}-{end - 1}/{total}"}, blob.data[first:end]

    def _count(self, size: int) -> None:
        with self.server_of.lock:
            self.server_of.sent += size

    def _copy(self, bucket: str, name: str, how: str, to_bucket: str, to_name: str, query: dict[str, str]) -> Answer:
        pinned = {"generation": query["sourceGeneration"]} if "sourceGeneration" in query else {}
        source = self.server_of.get(bucket, name, pinned)
        resource = self.server_of.put(
            to_bucket, to_name, source.data, query, content_type=source.content_type
        ).resource()
        if how == "copyTo":
            return _json(resource)
        size = str(len(source.data))
        return _json({"done": True, "totalBytesRewritten": size, "objectSize": size, "resource": resource})

    def _upload(self, method: str, bucket: str, query: dict[str, str], body: bytes) -> Answer:
        server, kind = self.server_of, query.get("uploadType", "media")
        content_type = self.headers.get("Content-Type", "")
        if "upload_id" in query:
            return self._resume(query["upload_id"], method, body)
        if kind == "resumable":
            given = json.loads(body) if body else {}
            started = self.headers.get("X-Upload-Content-Type", "")
            identity = server.begin_upload(_Upload(bucket, query, given, started))
            return 200, {"Location": f"{server.url}{urlsplit(self.path).path}?upload_id={identity}"}, b""
        if kind == "multipart":
            given, content_type, body = _split_multipart(content_type, body)
            return _json(server.finish_upload(_Upload(bucket, query, given, content_type, bytearray(body))).resource())
        given = _hashes(self.headers.get("X-Goog-Hash", ""))
        return _json(server.finish_upload(_Upload(bucket, query, given, content_type, bytearray(body))).resource())

    def _resume(self, identity: str, method: str, body: bytes) -> Answer:
        """Handle a part of a resumable upload, or the query of its size."""
        server = self.server_of
        upload = server.uploads.get(identity)
        if upload is None:
            raise RefusedError(404, "No such upload")
        if method == "DELETE":
            del server.uploads[identity]
            return 499, {}, b""
        if upload.done is not None:
            return _json(upload.done.resource())
        place = re.fullmatch(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)", self.headers.get("Content-Range", "bytes 0-*/*"))
        if place is None:
            raise RefusedError(400, "Content-Range is malformed")
        if body and int(place[1] or 0) != len(upload.data):
            raise RefusedError(400, f"{len(upload.data)} bytes have arrived, and this part begins at {place[1]}")
        total = int(place[3]) if place[3] != "*" else None
        if body and total is None and len(body) % CHUNK and place[2] not in (None, "*"):
            raise RefusedError(400, f"a part that is not the last has a multiple of {CHUNK} bytes")
        upload.data += body
        upload.resource.update(_hashes(self.headers.get("X-Goog-Hash", "")))
        if total == len(upload.data) or (total is None and place[1] is not None and place[2] == "*"):
            upload.done = server.finish_upload(upload)
            return _json(upload.done.resource())
        return 308, ({"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}), b""


def _joined(server: BucketServer, bucket: str, sources: list[dict[str, Any]]) -> bytes:
    """Return the content of a composition. RefusedError if it has too many parts, or one has another generation."""
    if not 1 <= len(sources) <= COMPOSED:
        raise RefusedError(400, f"{len(sources)} source objects; from 1 to {COMPOSED} can be composed")
    conditions = [{key: str(value) for key, value in each.get("objectPreconditions", {}).items()} for each in sources]
    return b"".join(
        server.get(bucket, each["name"], condition).data for each, condition in zip(sources, conditions, strict=True)
    )


def _json(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _hashes(header: str) -> dict[str, str]:
    """Return ``X-Goog-Hash`` of an object."""
    names = {"crc32c": "crc32c", "md5": "md5Hash"}
    pairs = (part.strip().split("=", 1) for part in header.split(",") if "=" in part)
    return {names[key]: value for key, value in pairs if key in names}


_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


def _split_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], str, bytes]:
    """Split a multipart upload into metadata, content type and content.

    The content may be any bytes. Lines end with CR and LF, or as those of gsutil with LF alone.
    """
    head = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n")
    mark = b"--" + str(head.get_param("boundary")).strip("'").encode()  # gsutil's quotes
    sections = body.split(mark, 2)
    described = _BLANK_LINE.split(sections[1].lstrip(b"\r\n"), 1)[1]
    headers, content = _BLANK_LINE.split(sections[2].lstrip(b"\r\n"), 1)
    kind = BytesParser().parsebytes(headers + b"\r\n\r\n").get_content_type()
    content = content[: content.rindex(b"\n" + mark + b"--")]
    return json.loads(described), kind, content.removesuffix(b"\r") if b"\r\n" in body[:200] else content


@contextlib.contextmanager
def bucket_server(*buckets: str) -> Iterator[BucketServer]:
    """Context with a running server that has these buckets."""
    with BucketServer() as server:
        for bucket in buckets:
            server.create(bucket)
        yield server
