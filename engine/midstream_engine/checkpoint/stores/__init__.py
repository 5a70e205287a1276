"""Where checkpoints lie: below a directory or under a ``gs://`` prefix. Their bytes are the same in both."""

from __future__ import annotations

from midstream_engine.checkpoint.stores.checkpoint_store import RunCheckpoints, Store
from midstream_engine.checkpoint.stores.directory import Directory, DirectoryCheckpoints

SCHEME = "gs://"


def in_bucket(where: str) -> bool:
    """Whether a checkpoint's name is that of a bucket's prefix."""
    return where.startswith(SCHEME)


def open_store(where: str) -> Store:
    """The checkpoint at ``where``: a directory's path or ``gs://bucket/prefix``. It need not exist."""
    if not in_bucket(where):
        return Directory(where)
    from midstream_engine.checkpoint.stores.bucket import Bucket

    return Bucket(where)


def open_checkpoints(where: str) -> RunCheckpoints:
    """The folder that holds a run's checkpoints: a path or ``gs://bucket/prefix``. It need not exist."""
    if not in_bucket(where):
        return DirectoryCheckpoints(where)
    from midstream_engine.checkpoint.stores.bucket_checkpoints import BucketCheckpoints

    return BucketCheckpoints(where)
