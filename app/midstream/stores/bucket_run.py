"""The checkpoints of a run in a bucket: list, pin, find leftovers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from midstream.stores.bucket import Bucket
from midstream.stores.bucket_access import Access
from midstream_engine import records
from midstream_engine.object_store.bucket_client import StoredObject

TRASH = ".trash-"
WRITER_TIMEOUT = 600.0  # seconds without a change after which no program is taken to be writing

ManifestCache = dict[str, tuple[Any, records.Manifest]]  # checkpoint -> version of its manifest, manifest


class BucketRun:
    """``<store>/runs/<run_id>``, listed once."""

    def __init__(self, store: str, run_id: str, access: Access | None = None) -> None:
        self._bucket = Bucket(records.RunPaths("", run_id, store).checkpoints.rpartition("/")[0], access)
        self._folders: dict[str, dict[str, StoredObject]] = {}
        for path, found in self._bucket.names("checkpoints/").items():
            name, slash, inner = path.partition("/")[2].partition("/")
            if slash:  # else it is the marker of the folder, or a stray file in it
                self._folders.setdefault(name, {})[inner] = found

    @property
    def url(self) -> str:
        return self._bucket.url

    def fence(self) -> records.Fence | None:
        """Return the fence beside the checkpoints, None if there is none.

        Raises:
            RecordError: It cannot be read.
        """
        data = self._bucket.get("fence.json")
        where = f"{self.url}/fence.json"
        return None if data is None else records.Fence.from_json(records.parse_json(data, where), where)

    def pinned(self) -> set[str]:
        """Return the names of the checkpoints that have a pin which has not expired."""
        found = set[str]()
        for path in self._bucket.names("pins/"):
            if path.endswith("/"):  # the marker of the folder
                continue
            data = self._bucket.get(path)
            where = f"{self.url}/{path}"
            pin = None if data is None else records.Pin.from_json(records.parse_json(data, where), where)
            if pin is not None and pin.expires > time.time():
                found.add(pin.checkpoint)
        return found

    def checkpoints(self, cache: ManifestCache | None = None) -> list[dict[str, Any]]:
        """Describe the checkpoints, by step, then attempt.

        Args:
            cache: Manifests of the last call. One whose version is the same is not read again.

        Returns:
            The fields of a ``CheckpointView`` for each.
        """
        cache = {} if cache is None else cache
        fence, pinned = self.fence(), self.pinned()
        found = list[dict[str, Any]]()
        for name, objects in self._folders.items():
            key = records.parse_checkpoint_name(name)
            if key is None:
                continue
            value: dict[str, Any] = {
                "name": name, "step": key[0], "attempt": key[1], "complete": False, "accepted": False,
            }  # fmt: skip
            try:
                manifest = self._manifest(name, objects, cache)
            except records.RecordError as error:
                manifest, value["damaged"] = None, str(error)
            if manifest is not None:
                value |= {"complete": True, "size": manifest.size, "created": manifest.created}
                value |= {"root_digest": manifest.root_digest, "epoch": manifest.epoch, "pinned": name in pinned}
                value["accepted"] = fence is None or fence.accepts(manifest.epoch, manifest.step)
            found.append(value)
        return sorted(found, key=lambda value: (value["step"], value["attempt"]))

    def _manifest(
        self, name: str, objects: Mapping[str, StoredObject], cache: ManifestCache
    ) -> records.Manifest | None:
        if records.MANIFEST not in objects:
            return None
        version = objects[records.MANIFEST].version
        if name not in cache or cache[name][0] != version:
            data = self._bucket.get(f"checkpoints/{name}/{records.MANIFEST}")
            if data is None:
                return None
            where = f"{self.url}/checkpoints/{name}/{records.MANIFEST}"
            cache[name] = version, records.Manifest.from_json(records.parse_json(data, where), where)
        return cache[name][1]

    def pin(self, migration: str, checkpoint: str, expires: float) -> None:
        """Exempt a checkpoint from retention until ``expires`` (UTC seconds).

        The exemption is on behalf of a migration.
        """
        pin = records.Pin(checkpoint, expires)
        self._bucket.put(f"pins/{records.check_run_id(migration)}.json", json.dumps(pin.to_json()).encode())

    def unpin(self, migration: str) -> None:
        """Remove the pin of a migration, if it has one."""
        self._bucket.delete(f"pins/{records.check_run_id(migration)}.json")

    def leftovers(self, writers: Mapping[int, str]) -> list[dict[str, Any]]:
        """Find partial checkpoints and deletions that did not finish.

        Args:
            writers: Attempts that run or may run, each with the reason to think so.

        Returns:
            For each ``path``, ``kind`` (partial, trash), ``bytes`` and ``kept``: why it must not be removed, or empty.
        """
        found = list[dict[str, Any]]()
        for name, objects in sorted(self._folders.items()):
            bare = name.removeprefix(TRASH)
            key = records.parse_checkpoint_name(bare)
            if key is None or (bare == name and records.MANIFEST in objects):
                continue
            if bare == name:
                kind, kept = "partial", writers.get(key[1], "")
            else:
                kind, kept = "trash", next(iter(writers.values()), "")
            set_aside = records.MANIFEST in self._folders.get(TRASH + bare, {})
            if not kept and set_aside and bare in self.pinned():
                kept = "it is pinned: the next save restores it"
            age = time.time() - max(each.updated for each in objects.values())
            if not kept and age < WRITER_TIMEOUT:
                kept = f"it changed {max(0.0, age):.0f} s ago: a program may be writing it"
            size = sum(each.size for each in objects.values())
            found.append({"path": f"{self.url}/checkpoints/{name}", "kind": kind, "bytes": size, "kept": kept})
        return found

    def remove(self, path: str) -> None:
        """Remove a leftover as it was listed.

        If it has a manifest by now, nothing is removed.
        """
        name = path.rpartition("/")[2]
        if not name.startswith(TRASH) and self._bucket.get(f"checkpoints/{name}/{records.MANIFEST}") is not None:
            return
        for each in self._folders[name].values():
            self._bucket.delete_listed(each)
