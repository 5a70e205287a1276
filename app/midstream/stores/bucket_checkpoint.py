"""One checkpoint under a ``gs://`` prefix, read from this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from midstream.errors import MidstreamError
from midstream.hosts.rpc.report_types import ExaminedTree
from midstream.stores.bucket import Bucket
from midstream.stores.bucket_access import Access
from midstream_core import records

CONCURRENCY = 8  # objects that are read at the same time


class BucketCheckpoint:
    """The checkpoint at ``url``.

    All methods raise MidstreamError if the service rejects a request.
    """

    def __init__(self, url: str, access: Access | None = None) -> None:
        self._bucket = Bucket(url, access)

    @property
    def url(self) -> str:
        return self._bucket.url

    def get(self, path: str) -> bytes | None:
        """Return an object's bytes, None if it does not exist."""
        return self._bucket.get(path)

    def is_complete(self) -> bool:
        """Return whether the manifest exists."""
        return self.get(records.MANIFEST) is not None

    def manifest(self) -> records.Manifest:
        """Return the manifest.

        Raises:
            MidstreamError: There is none, or it is no manifest.
        """
        data = self.get(records.MANIFEST)
        if data is None:
            raise MidstreamError(f"{self.url}: there is no {records.MANIFEST}: no complete checkpoint")
        try:
            return records.Manifest.from_json(records.parse_json(data, self.url), self.url)
        except records.RecordError as error:
            raise MidstreamError(str(error)) from None

    def train(self) -> dict[str, Any]:
        """Return the contents of ``train.json``.

        Raises:
            MidstreamError: There is none, or it is no JSON object.
        """
        where = f"{self.url}/{records.TRAIN}"
        data = self.get(records.TRAIN)
        if data is None:
            raise MidstreamError(
                f"{self.url}: there is no {records.TRAIN}", f"midstream --verify {self.url} names the rest"
            )
        train: object = records.parse_json(data, where)
        if not isinstance(train, dict):
            raise MidstreamError(
                f"{self.url}: {records.TRAIN} is not an object", f"midstream --verify {self.url} reads it"
            )
        return cast(dict[str, Any], train)

    def examine(self) -> ExaminedTree:
        """Read and hash every object once."""
        manifest, listed = self.manifest(), self._bucket.names()

        def check(entry: records.ObjectEntry) -> str:
            return self._bucket.check(entry, listed.get(entry.path))

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            faults = pool.map(check, manifest.object_entries)
            problems = [(entry.path, what) for entry, what in zip(manifest.object_entries, faults, strict=True) if what]
        digest = None
        if not problems:
            hashes = {entry.path: entry.sha256 for entry in manifest.object_entries}
            train = self.train() if records.TRAIN in listed else {}
            digest = records.root_digest(manifest.array_entries, hashes, train.get("state", {}))
        named = {entry.path for entry in manifest.object_entries}
        return ExaminedTree(
            extra=sorted(listed.keys() - named - {records.MANIFEST}),
            recorded=manifest.root_digest,
            recomputed=digest,
            problems=sorted(problems),
            objects=len(manifest.objects),
            bytes=manifest.size,
        )
