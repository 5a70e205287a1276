"""Objects of a bucket as the files of another trainer's checkpoint."""

from __future__ import annotations

import io
import posixpath
from typing import BinaryIO, Dict, List, cast

from midstream_core.object_store.bucket_client import BucketClient, ObjectFile, StoredObject

READ_AHEAD = 256 << 10  # bytes of one request for a part of an object


class BucketFiles:
    """Objects of a bucket, as the files that `CheckpointFiles` has.

    A path is a URL; ``..`` is resolved. A directory is listed once: later changes
    are not seen. Methods raise FileNotFoundError and StoreError.
    """

    def __init__(self, client: BucketClient) -> None:
        """Create the files of a bucket; ``client`` is that of the bucket without a prefix."""
        self._client = client
        self._listed: Dict[str, Dict[str, StoredObject]] = {}

    def _name(self, url: str) -> str:
        start = self._client.url + "/"
        name = posixpath.normpath(url[len(start) :])
        if not url.startswith(start) or name.startswith("."):
            raise FileNotFoundError(url)
        return name

    def _below(self, directory: str) -> Dict[str, StoredObject]:
        start = self._name(directory) + "/"
        for listed, entries in self._listed.items():
            if start.startswith(listed):
                return {path[len(start) :]: entry for path, entry in entries.items() if path.startswith(start)}
        entries = self._client.entries(start)
        if not entries:
            raise FileNotFoundError(directory)
        self._listed[start] = entries
        return {path[len(start) :]: entry for path, entry in entries.items()}

    def names(self, directory: str) -> List[str]:
        return sorted({path.split("/")[0] for path in self._below(directory)} - {""})

    def _look(self, path: str) -> StoredObject:
        name = self._name(path)
        for listed, files in self._listed.items():
            if name.startswith(listed):
                entry = files.get(name)
                break
        else:
            entry = self._client.look(name)
        if entry is None:
            raise FileNotFoundError(path)
        return entry

    def is_file(self, path: str) -> bool:
        try:
            self._look(path)
        except FileNotFoundError:
            return False
        return True

    def open(self, path: str) -> BinaryIO:
        entry = self._look(path)
        raw = ObjectFile(self._client, entry.path, entry.size, entry.version)
        return cast(BinaryIO, io.BufferedReader(raw, READ_AHEAD))

    def sizes(self, directory: str) -> Dict[str, int]:
        return {path: entry.size for path, entry in self._below(directory).items()}
