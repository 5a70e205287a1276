"""A checkpoint under a ``gs://`` prefix, read from this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, cast

from midstream.errors import MidstreamError
from midstream.remote.gcs import client
from midstream.stores.bucket_access import Access
from midstream_engine import records

SCHEME = "gs://"
HASHERS = 8  # objects that are read at a time
BLOCK = 1 << 20


class Bucket:
    """The objects below ``gs://bucket/prefix``."""

    def __init__(self, url: str, access: Access | None = None):
        self.url = url.rstrip("/")
        self._name, _, self._prefix = self.url.removeprefix(SCHEME).partition("/")
        access = access or Access()
        self._client = _open(access)
        self._bucket = self._client.bucket(self._name, user_project=access.user_project or None)

    def names(self, below: str = "") -> dict[str, Any]:
        """Objects by path relative to the prefix, with size, crc32c and time."""
        start = f"{self._prefix}/" if self._prefix else ""
        with _errors(self.url):
            found = self._client.list_blobs(self._bucket, prefix=start + below)
            return {blob.name[len(start) :]: blob for blob in found}

    def get(self, path: str) -> bytes | None:
        """An object, None where there is none."""
        try:
            with _errors(f"{self.url}/{path}"):
                return self._blob(path).download_as_bytes()
        except FileNotFoundError:
            return None

    def put(self, path: str, data: bytes) -> None:
        """Make an object, or replace it, whatever is there."""
        with _errors(f"{self.url}/{path}"):
            self._blob(path).upload_from_string(data, "application/json", retry=client.patient())

    def delete(self, path: str) -> None:
        """One that is gone is no error."""
        with contextlib.suppress(FileNotFoundError), _errors(f"{self.url}/{path}"):
            self._blob(path).delete()

    def manifest(self) -> records.Manifest:
        """MidstreamError where there is none."""
        data = self.get(records.MANIFEST)
        if data is None:
            raise MidstreamError(f"{self.url}: there is no {records.MANIFEST}: no complete checkpoint")
        try:
            return records.Manifest.from_json(json.loads(data), self.url)
        except ValueError as error:
            raise MidstreamError(f"{self.url}: {error}") from None

    def examine(self) -> Iterator[dict[str, Any]]:
        """Read every object once and check it, as ``midstream.remote.verify.tree.verify`` does on a host. Nothing is
        kept."""
        manifest, there = self.manifest(), self.names()
        with ThreadPoolExecutor(HASHERS) as pool:
            wrong = {
                entry.path: flaw
                for entry, flaw in zip(
                    manifest.object_entries,
                    pool.map(lambda entry: self._flaw(entry, there), manifest.object_entries),
                    strict=True,
                )
                if flaw
            }
        problems, digest = [[path, flaw] for path, flaw in sorted(wrong.items())], None
        if not wrong:
            hashes = {entry.path: entry.sha256 for entry in manifest.object_entries}
            state = json.loads(self.get(records.TRAIN) or b"{}").get("state")
            digest = records.root_digest(manifest.array_entries, hashes, state)
        yield {
            "event": "verified",
            "objects": len(manifest.objects),
            "bytes": manifest.size,
            "recorded": manifest.root_digest,
            "recomputed": digest,
            "problems": problems,
            "extra": sorted(there.keys() - {entry.path for entry in manifest.object_entries} - {records.MANIFEST}),
        }

    def _flaw(self, entry: records.ObjectEntry, there: Mapping[str, Any]) -> str:
        if entry.path not in there:
            return "missing"
        if there[entry.path].size != entry.size:
            return f"{there[entry.path].size} bytes, the manifest says {entry.size}"
        digest = hashlib.sha256()
        with _errors(f"{self.url}/{entry.path}"), self._blob(entry.path).open("rb", chunk_size=8 * BLOCK) as opened:
            while block := cast(IO[bytes], opened).read(BLOCK):
                digest.update(block)
        if digest.hexdigest() != entry.sha256:
            return f"SHA-256 is {digest.hexdigest()}, the manifest says {entry.sha256}"
        return ""

    def _blob(self, path: str) -> Any:
        return self._bucket.blob("/".join(part for part in (self._prefix, path) if part))


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    """The client's errors as one line. FileNotFoundError for an object that is not there."""
    try:
        with client.errors(what):
            yield
    except client.GcsError as error:
        raise MidstreamError(error.message, error.hint) from None


def _open(access: Access) -> Any:
    try:
        return client.open_client(access.to_json())
    except client.GcsError as error:
        raise MidstreamError(error.message, error.hint) from None
