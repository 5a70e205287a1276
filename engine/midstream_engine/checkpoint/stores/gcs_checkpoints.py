"""A run's checkpoints in a bucket."""

from __future__ import annotations

from midstream_engine.checkpoint.stores.bucket_client import bucket_client
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.checkpoint.stores.gcs_objects import GcsObjects
from midstream_engine.checkpoint.stores.manifest import manifest_of
from midstream_engine.records import MANIFEST


class GcsCheckpoints:
    """Checkpoints below a ``gs://`` prefix; see :class:`CheckpointStore`.

    A bucket has no rename. Only the manifest moves to the trash, ``.trash-<name>/``: without it there is no checkpoint,
    and moving it back restores the checkpoint.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def names(self) -> list[str]:
        return bucket_client.folders(self._url)

    def store(self, name: str) -> GcsObjects:
        return GcsObjects(f"{self._url}/{name}")

    def set_aside(self, name: str) -> None:
        data, generation = bucket_client.get(self._url, f"{name}/{MANIFEST}")
        bucket_client.put(self._url, f"{TRASH}{name}/{MANIFEST}", data, None)
        bucket_client.delete(self._url, f"{name}/{MANIFEST}", generation)

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
