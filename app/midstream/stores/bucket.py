"""A checkpoint under a ``gs://`` prefix, read from this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, cast

from midstream.errors import MidstreamError
from midstream_engine import records

SCHEME = "gs://"
HASHERS = 8  # objects that are read at a time
BLOCK = 1 << 20


class Bucket:
    """The objects below ``gs://bucket/prefix``."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._bucket, _, self._prefix = self.url.removeprefix(SCHEME).partition("/")
        self._client = _client()

    def names(self, below: str = "") -> dict[str, Any]:
        """Objects by path relative to the prefix, with size, crc32c and time."""
        start = f"{self._prefix}/" if self._prefix else ""
        with _errors(self.url):
            found = self._client.list_blobs(self._bucket, prefix=start + below)
            return {blob.name[len(start) :]: blob for blob in found}

    def get(self, path: str) -> bytes | None:
        """An object, None where there is none."""
        from google.api_core.exceptions import NotFound

        with _errors(f"{self.url}/{path}"):
            try:
                return self._blob(path).download_as_bytes()
            except NotFound:
                return None

    def delete(self, path: str) -> None:
        """One that is gone is no error."""
        from google.api_core.exceptions import NotFound

        with _errors(f"{self.url}/{path}"), contextlib.suppress(NotFound):
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
        """Read every object once and check it, as ``midstream.remote.tree.verify`` does on a host. Nothing is kept."""
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
        return self._client.bucket(self._bucket).blob("/".join(part for part in (self._prefix, path) if part))


def _client() -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage

    try:
        return storage.Client()
    except DefaultCredentialsError as error:
        raise MidstreamError(
            f"no credentials for gs://: {' '.join(str(error).split())}", "gcloud auth application-default login"
        ) from None


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    """The client's errors as one line."""
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except NotFound as error:
        raise MidstreamError(f"{what}: {error.message}") from None
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise MidstreamError(f"{what}: {' '.join(str(error).split())[:300]}") from None
