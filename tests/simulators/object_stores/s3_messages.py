"""XML of an S3 server's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from simulators.object_stores.bucket_objects import Blob, RefusedError
from simulators.object_stores.object_service import Answer

Fields = Sequence[tuple[str, Any]]  # (tag, text or fields)

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def xml(tag: str, fields: Fields, status: int = 200) -> Answer:
    """Return an answer with a document."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{tag} xmlns="{NAMESPACE}">{_inner(fields)}</{tag}>'
    return status, {"Content-Type": "application/xml"}, text.encode()


def _inner(fields: Fields) -> str:
    return "".join(
        f"<{tag}>{escape(str(value)) if isinstance(value, (str, int)) else _inner(value)}</{tag}>"
        for tag, value in fields
    )


def error(refusal: RefusedError) -> Answer:
    """Return the answer for a refused request."""
    codes = {404: "NoSuchKey", 403: "AccessDenied", 412: "PreconditionFailed", 503: "SlowDown", 500: "InternalError"}
    code = refusal.code or codes.get(refusal.status, "Lab")
    fields = [("Code", code), ("Message", str(refusal)), ("RequestId", "lab")]
    text = f"<?xml version='1.0'?><Error>{_inner(fields)}</Error>"
    return refusal.status, {"Content-Type": "application/xml"}, text.encode()


def listed_buckets(names: Sequence[str]) -> Answer:
    """Return the answer to ListBuckets."""
    stamp = _stamp(time.time())
    buckets = [("Bucket", [("Name", name), ("CreationDate", stamp)]) for name in names]
    return xml("ListAllMyBucketsResult", [("Owner", [("ID", "lab")]), ("Buckets", buckets)])


def listed_objects(
    bucket: str,
    query: Mapping[str, str],
    page: Sequence[tuple[str, Blob | None]],
    following: str,
    etag: Callable[[Blob], str],
) -> Answer:
    """Return the answer to ListObjectsV2."""
    encoded = quote if query.get("encoding-type") == "url" else str
    fields: list[tuple[str, Any]] = [
        ("Name", bucket), ("Prefix", encoded(query.get("prefix", ""))), ("KeyCount", len(page)),
        ("MaxKeys", query.get("max-keys", "1000")), ("IsTruncated", "true" if following else "false"),
    ]  # fmt: skip
    if query.get("encoding-type"):
        fields.append(("EncodingType", "url"))
    if following:
        fields += [("NextContinuationToken", following), ("NextMarker", encoded(following))]
    for name, blob in page:
        if blob is None:
            fields.append(("CommonPrefixes", [("Prefix", encoded(name))]))
        else:
            size, stamp = len(blob.data), _stamp(blob.updated)
            described = [("Key", encoded(name)), ("LastModified", stamp), ("ETag", f'"{etag(blob)}"'), ("Size", size)]
            fields.append(("Contents", [*described, ("StorageClass", "STANDARD")]))
    return xml("ListBucketResult", fields)


def listed_parts(bucket: str, name: str, parts: Mapping[int, Blob], etag: Callable[[Blob], str]) -> Answer:
    """Return the answer to ListParts."""
    described = [
        ("Part", [("PartNumber", number), ("ETag", f'"{etag(part)}"'), ("Size", len(part.data))])
        for number, part in sorted(parts.items())
    ]
    return xml("ListPartsResult", [("Bucket", bucket), ("Key", name), ("IsTruncated", "false"), *described])


def started(bucket: str, name: str, identity: str) -> Answer:
    """Return the answer to CreateMultipartUpload."""
    return xml("InitiateMultipartUploadResult", [("Bucket", bucket), ("Key", name), ("UploadId", identity)])


def copied(tag: str, mark: str, checks: Mapping[str, str] | None = None) -> Answer:
    """Return the answer to CopyObject or UploadPartCopy."""
    return xml(tag, [("ETag", f'"{mark}"'), ("LastModified", _stamp(time.time())), *(checks or {}).items()])


def completed(bucket: str, name: str, mark: str) -> Answer:
    """Return the answer to CompleteMultipartUpload."""
    return xml("CompleteMultipartUploadResult", [("Bucket", bucket), ("Key", name), ("ETag", f'"{mark}"')])


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
