"""Checkpoint stores: a directory or a prefix in a bucket.

A checkpoint's bytes are the same in both.
"""

from __future__ import annotations

from midstream_core.object_store.urls import in_bucket
from midstream_engine.checkpoint.stores.bucket_checkpoints import BucketCheckpoints
from midstream_engine.checkpoint.stores.bucket_objects import BucketObjects
from midstream_engine.checkpoint.stores.checkpoint_store import RunCheckpoints
from midstream_engine.checkpoint.stores.directory_checkpoints import DirectoryCheckpoints
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.checkpoint.stores.object_store import ObjectStore

__all__ = ["ObjectStore", "RunCheckpoints", "in_bucket", "open_checkpoints", "open_store"]


def open_store(where: str) -> ObjectStore:
    """Return the objects of the checkpoint at ``where``, which need not exist.

    ``where`` is a directory or a prefix in a bucket.
    """
    if not in_bucket(where):
        return DirectoryObjects(where)
    return BucketObjects(where)


def open_checkpoints(where: str) -> RunCheckpoints:
    """Return the store of a run's checkpoints at ``where``, which need not exist.

    ``where`` is a directory or a prefix in a bucket.
    """
    if not in_bucket(where):
        return DirectoryCheckpoints(where)
    return BucketCheckpoints(where)
