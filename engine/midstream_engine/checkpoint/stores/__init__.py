"""Checkpoint stores: a directory or a ``gs://`` prefix. A checkpoint's bytes are the same in both."""

from __future__ import annotations

from midstream_engine.checkpoint.stores.checkpoint_store import CheckpointStore
from midstream_engine.checkpoint.stores.directory_checkpoints import DirectoryCheckpoints
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.checkpoint.stores.gcs_checkpoints import GcsCheckpoints
from midstream_engine.checkpoint.stores.gcs_objects import GcsObjects
from midstream_engine.checkpoint.stores.object_store import ObjectStore

SCHEME = "gs://"


def in_bucket(where: str) -> bool:
    """Return whether a checkpoint's URL is a prefix in a bucket."""
    return where.startswith(SCHEME)


def open_store(where: str) -> ObjectStore:
    """Return the objects of the checkpoint at ``where``, a directory or ``gs://bucket/prefix``. It need not exist."""
    if not in_bucket(where):
        return DirectoryObjects(where)
    return GcsObjects(where)


def open_checkpoints(where: str) -> CheckpointStore:
    """Return the store of a run's checkpoints, a directory or ``gs://bucket/prefix``. It need not exist."""
    if not in_bucket(where):
        return DirectoryCheckpoints(where)
    return GcsCheckpoints(where)
