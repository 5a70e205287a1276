"""A run's checkpoints in a bucket."""

from __future__ import annotations

from midstream_core.records import MANIFEST
from midstream_engine.checkpoint.stores.bucket_objects import BucketObjects
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.checkpoint.stores.run_bucket import RunBucket
from midstream_engine.checkpoint.stores.stored_manifest import manifest_of


class BucketCheckpoints:
    """Checkpoints below a prefix; see :class:`CheckpointStore`.

    A bucket has no rename. Only the manifest moves to the trash, ``.trash-<name>/``: without it there is no checkpoint,
    and moving it back restores the checkpoint.
    """

    def __init__(self, url: str) -> None:
        self._bucket = RunBucket(url)

    def names(self) -> list[str]:
        return self._bucket.folders()

    def store(self, name: str) -> BucketObjects:
        return BucketObjects(f"{self._bucket.url}/{name}")

    def set_aside(self, name: str) -> None:
        data, version = self._bucket.get(f"{name}/{MANIFEST}")
        self._bucket.put(f"{TRASH}{name}/{MANIFEST}", data, None)
        self._bucket.delete(f"{name}/{MANIFEST}", version)

    def bring_back(self, name: str) -> bool:
        """Move a checkpoint back if all its objects exist.

        A deletion begins with the objects and ends with the manifest in the trash.
        """
        trash, objects = self.store(TRASH + name), self.store(name)
        if objects.exists(MANIFEST) or not trash.exists(MANIFEST):
            return False
        paths = set(objects.names())
        if any(entry.path not in paths for entry in manifest_of(trash).object_entries):
            return False
        objects.commit(MANIFEST, trash.get(MANIFEST))
        trash.clear()
        return True

    def empty(self, name: str) -> None:
        objects = self.store(name)
        if not objects.exists(MANIFEST):  # else the deletion ended before its first object
            objects.clear()
        self.store(TRASH + name).clear()
