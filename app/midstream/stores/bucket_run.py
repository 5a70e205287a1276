"""The checkpoints of a run in a bucket: list, pin, find leftovers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from midstream.stores.bucket import Bucket
from midstream.stores.bucket_acceptance import acceptance
from midstream.stores.bucket_access import Access
from midstream.stores.bucket_writers import BucketWriters
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_core.object_store.bucket_client import StoredObject
from midstream_host.runs.leftovers import ONLY_STATE

TRASH = ".trash-"
WRITER_TIMEOUT = 600.0  # seconds without a change after which no program is taken to be writing

ManifestCache = dict[str, tuple[Any, records.Manifest]]  # checkpoint -> version of its manifest, manifest

Leftover = dict[str, Any]  # as hosts describe theirs


class BucketRun:
    """``<store>/runs/<run_id>``, listed once."""

    def __init__(self, store: str, run_id: str, access: Access | None = None) -> None:
        self._bucket = Bucket(records.RunPaths("", run_id, store).checkpoints.rpartition("/")[0], access)
        self._folders: dict[str, dict[str, StoredObject]] = {}
        for path, stored in self._bucket.names("checkpoints/").items():
            name, slash, inner = path.partition("/")[2].partition("/")
            if slash:  # else it is the marker of the folder, or a stray file in it
                self._folders.setdefault(name, {})[inner] = stored

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
        names = set[str]()
        for path in self._bucket.names("pins/"):
            if path.endswith("/"):  # the marker of the folder
                continue
            data = self._bucket.get(path)
            where = f"{self.url}/{path}"
            pin = None if data is None else records.Pin.from_json(records.parse_json(data, where), where)
            if pin is not None and pin.expires > time.time():
                names.add(pin.checkpoint)
        return names

    def checkpoints(
        self, cache: ManifestCache | None = None, accepted: Callable[[int, int, int], bool] | None = None
    ) -> list[ListedCheckpoint]:
        """Describe the checkpoints, by step, then attempt.

        Args:
            cache: Manifests of the last call. One whose version is the same is not read again.
            accepted: Whether ``(epoch, step, start)`` counts; by default as the fence in the bucket says.
        """
        cache = {} if cache is None else cache
        accepted = accepted or acceptance(None, self.fence(), 0).accepts
        pinned, listed = self.pinned(), list[ListedCheckpoint]()
        for name, objects in self._folders.items():
            key = records.parse_checkpoint_name(name)
            if key is None:
                continue
            flaw = ""
            try:
                manifest = self._manifest(name, objects, cache)
                if manifest is not None and manifest.name != name:
                    raise records.RecordError(f"{self.url}/checkpoints/{name}: its manifest is that of {manifest.name}")
            except records.RecordError as error:
                manifest, flaw = None, str(error)
            if manifest is None:
                listed.append(ListedCheckpoint(name, *key, False, False, damaged=flaw))
                continue
            listed.append(
                ListedCheckpoint(
                    name, *key, True, accepted(manifest.epoch, manifest.step, manifest.start), manifest.size,
                    manifest.created, manifest.root_digest, manifest.epoch, name in pinned, start=manifest.start,
                )
            )  # fmt: skip
        return sorted(listed, key=lambda checkpoint: checkpoint.order)

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
        """Exempt a migration's checkpoint from retention until ``expires`` (UTC seconds)."""
        pin = records.Pin(checkpoint, expires)
        self._bucket.put(f"pins/{records.check_run_id(migration)}.json", json.dumps(pin.to_json()).encode())

    def unpin(self, migration: str) -> None:
        """Remove the pin of a migration, if it has one."""
        self._bucket.delete(f"pins/{records.check_run_id(migration)}.json")

    def leftovers(self, writers: BucketWriters) -> list[Leftover]:
        """Find partial checkpoints and deletions that did not finish.

        Returns:
            For each ``path``, ``kind`` (partial, trash), ``bytes``, ``kept``: why it must not be removed, or empty, and
            ``changed``: when it did for the last time, in UTC seconds.
        """
        leftovers = list[Leftover]()
        for name, objects in sorted(self._folders.items()):
            bare = name.removeprefix(TRASH)
            key = records.parse_checkpoint_name(bare)
            if key is None or (bare == name and records.MANIFEST in objects):
                continue
            if bare == name:
                kind, kept = "partial", writers.of_attempt(key[1])
            else:
                kind, kept = "trash", writers.any()
            kept = kept or self._replaceable(bare)
            changed = max(stored.updated for stored in objects.values())
            age = time.time() - changed
            if not kept and age < WRITER_TIMEOUT:
                kept = f"it changed {max(0.0, age):.0f} s ago: a program may be writing it"
            size = sum(stored.size for stored in objects.values())
            path = f"{self.url}/checkpoints/{name}"
            leftovers.append({"path": path, "kind": kind, "bytes": size, "kept": kept, "changed": changed})
        return leftovers

    def _replaceable(self, name: str) -> str:
        """Return why a checkpoint whose manifest is in the trash must stay.

        Empty where it need not, or where no manifest of it is there.
        """
        trash = f"{TRASH}{name}"
        if records.MANIFEST not in self._folders.get(trash, {}):
            return ""
        if name in self.pinned():
            return "it is pinned: the next save restores it"
        try:
            manifest = self._manifest(trash, self._folders[trash], {})
        except records.RecordError:
            return ""
        objects = self._folders.get(name, {})
        if manifest is None or any(entry.path not in objects for entry in manifest.object_entries):
            return ""
        newer = [
            checkpoint for checkpoint in self.checkpoints() if checkpoint.accepted and checkpoint.step >= manifest.step
        ]
        return "" if newer else ONLY_STATE

    def remove(self, path: str) -> None:
        """Remove a leftover as it was listed.

        If it has a manifest by now, nothing is removed.
        """
        name = path.rpartition("/")[2]
        if not name.startswith(TRASH) and self._bucket.get(f"checkpoints/{name}/{records.MANIFEST}") is not None:
            return
        for stored in self._folders[name].values():
            self._bucket.delete_listed(stored)
