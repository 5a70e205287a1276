"""A run's checkpoints in a bucket: what there is, and deletion that a pin can still stop."""

from __future__ import annotations

from midstream_engine.checkpoint.stores import gcs_client
from midstream_engine.checkpoint.stores.bucket import Bucket
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.records import MANIFEST


class BucketCheckpoints:
    """The checkpoints below a ``gs://`` prefix.

    A bucket renames nothing. A checkpoint is set aside by moving its manifest alone, to ``.trash-<name>/``: at once it
    is no checkpoint any more, and moving the manifest back makes it one again.
    """

    def __init__(self, url: str):
        self._url = url.rstrip("/")

    def names(self) -> list[str]:
        return gcs_client.folders(self._url)

    def store(self, name: str) -> Bucket:
        return Bucket(f"{self._url}/{name}")

    def set_aside(self, name: str) -> None:
        data, generation = gcs_client.get(self._url, f"{name}/{MANIFEST}")
        gcs_client.put(self._url, f"{TRASH}{name}/{MANIFEST}", data, None)
        gcs_client.delete(self._url, f"{name}/{MANIFEST}", generation)

    def bring_back(self, name: str) -> bool:
        """Deleting begins with the objects and ends with the manifest in the trash: objects that are all there can be
        brought back, even where some deletion was cut off before its first."""
        trash, place = self.store(TRASH + name), self.store(name)
        if place.exists(MANIFEST) or not trash.exists(MANIFEST):
            return False
        from midstream_engine.checkpoint.loading.list_checkpoints import read_manifest

        there = set(place.names())
        if any(entry.path not in there for entry in read_manifest(trash.where).object_entries):
            return False
        place.commit(MANIFEST, trash.get(MANIFEST))
        trash.clear()
        return True

    def empty(self, name: str) -> None:
        place = self.store(name)
        if not place.exists(MANIFEST):  # else its deletion was cut off before it began
            place.clear()
        self.store(TRASH + name).clear()
