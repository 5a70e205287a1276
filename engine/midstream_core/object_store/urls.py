"""URLs of buckets and objects: ``gs://bucket/prefix``, ``s3://bucket/prefix``."""

from __future__ import annotations

from midstream_core.object_store.errors import StoreError

GCS, S3 = "gs://", "s3://"
SCHEMES = (GCS, S3)
FORMS = "gs://BUCKET/PREFIX or s3://BUCKET/PREFIX"  # for hints


def in_bucket(where: str) -> bool:
    """Return whether a location is the URL of a bucket or of something in it."""
    return where.startswith(SCHEMES)


def split_url(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix of ``gs://bucket/a/b``.

    The prefix has no slashes at its end.

    Raises:
        StoreError: ``url`` names no bucket.
    """
    scheme, separator, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme + separator not in SCHEMES or not bucket:
        raise StoreError(f"{url!r} names no bucket", f"write {FORMS}")
    return scheme + separator, bucket, prefix.strip("/")


def joined(*parts: str) -> str:
    """Join parts of a name with one slash between them; ignore empty parts."""
    return "/".join(piece for piece in parts if piece)
