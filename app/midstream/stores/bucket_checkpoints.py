"""The checkpoints of a run in a bucket: what there is, and what was left over."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from midstream.stores.bucket import Bucket
from midstream.stores.bucket_access import Access
from midstream_engine import records

TRASH = ".trash-"
QUIET = 600.0  # seconds without a change after which nobody is taken to be writing


class BucketRun:
    """``<store>/runs/<run_id>``, listed once."""

    def __init__(self, store: str, run_id: str, access: Access | None = None):
        self._bucket = Bucket(records.RunPaths("", run_id, store).checkpoints.rpartition("/")[0], access)
        self._folders: dict[str, dict[str, Any]] = {}
        for path, blob in self._bucket.names("checkpoints/").items():
            _, name, inner = path.split("/", 2)
            self._folders.setdefault(name, {})[inner] = blob

    @property
    def url(self) -> str:
        return self._bucket.url

    def fence(self) -> records.Fence | None:
        data = self._bucket.get("fence.json")
        where = f"{self.url}/fence.json"
        return None if data is None else records.Fence.from_json(records.parse_json(data, where), where)

    def pinned(self) -> set[str]:
        """Names that a pin beside them holds now."""
        found = set()
        for path in self._bucket.names("pins/"):
            data = self._bucket.get(path)
            where = f"{self.url}/{path}"
            pin = None if data is None else records.Pin.from_json(records.parse_json(data, where), where)
            if pin is not None and pin.expires > time.time():
                found.add(pin.checkpoint)
        return found

    def checkpoints(self, known: dict[str, tuple[Any, records.Manifest]] | None = None) -> list[dict[str, Any]]:
        """The fields of a ``CheckpointView`` for each, by step, then attempt. ``known`` keeps manifests for the next
        call: one that has not changed is not read again."""
        known = {} if known is None else known
        fence, pinned = self.fence(), self.pinned()
        found = []
        for name, objects in self._folders.items():
            key = records.parse_checkpoint_name(name)
            if key is None:
                continue
            value = {"name": name, "step": key[0], "attempt": key[1], "complete": False, "accepted": False}
            try:
                manifest = self._manifest(name, objects, known)
            except records.RecordError as error:
                manifest, value["damaged"] = None, str(error)
            if manifest is not None:
                value |= {"complete": True, "size": manifest.size, "created": manifest.created}
                value |= {"root_digest": manifest.root_digest, "epoch": manifest.epoch, "pinned": name in pinned}
                value["accepted"] = fence is None or fence.accepts(manifest.epoch, manifest.step)
            found.append(value)
        return sorted(found, key=lambda value: (value["step"], value["attempt"]))

    def _manifest(
        self, name: str, objects: Mapping[str, Any], known: dict[str, tuple[Any, records.Manifest]]
    ) -> records.Manifest | None:
        if records.MANIFEST not in objects:
            return None
        generation = objects[records.MANIFEST].generation
        if name not in known or known[name][0] != generation:
            data = self._bucket.get(f"checkpoints/{name}/{records.MANIFEST}")
            if data is None:
                return None
            where = f"{self.url}/checkpoints/{name}/{records.MANIFEST}"
            known[name] = generation, records.Manifest.from_json(records.parse_json(data, where), where)
        return known[name][1]

    def pin(self, migration: str, checkpoint: str, expires: float) -> None:
        """Keep retention away from a checkpoint until ``expires`` (UTC seconds), on behalf of a migration."""
        pin = records.Pin(checkpoint, expires)
        self._bucket.put(f"pins/{records.check_run_id(migration)}.json", json.dumps(pin.to_json()).encode())

    def unpin(self, migration: str) -> None:
        """End what ``pin`` began."""
        self._bucket.delete(f"pins/{records.check_run_id(migration)}.json")

    def leftovers(self, alive: Mapping[int, str]) -> list[dict[str, Any]]:
        """``path``, ``kind`` (torn, trash), ``bytes`` and ``kept``: why it is not to be removed, or nothing. ``alive``:
        attempts that run or may run, each with the reason to think so."""
        found = []
        for name, objects in sorted(self._folders.items()):
            bare = name.removeprefix(TRASH)
            key = records.parse_checkpoint_name(bare)
            if key is None or (bare == name and records.MANIFEST in objects):
                continue
            kind, kept = ("torn", alive.get(key[1], "")) if bare == name else ("trash", next(iter(alive.values()), ""))
            set_aside = records.MANIFEST in self._folders.get(TRASH + bare, {})
            if not kept and set_aside and bare in self.pinned():
                kept = "it is pinned: the next save brings it back"
            quiet = time.time() - max(blob.updated.timestamp() for blob in objects.values())
            if not kept and quiet < QUIET:
                kept = f"it changed {max(0.0, quiet):.0f} s ago: somebody may be at it"
            size = sum(blob.size for blob in objects.values())
            found.append({"path": f"{self.url}/checkpoints/{name}", "kind": kind, "bytes": size, "kept": kept})
        return found

    def remove(self, path: str) -> None:
        """Remove a leftover. Its manifest, where one came back meanwhile, is left, and so is everything."""
        name = path.rpartition("/")[2]
        trash = name.startswith(TRASH)
        if not trash and self._bucket.get(f"checkpoints/{name}/{records.MANIFEST}") is not None:
            return
        for inner in self._folders[name]:
            self._bucket.delete(f"checkpoints/{name}/{inner}")
