"""Compile cache in a bucket, shared by hosts.

Programs are fetched before compiling, and new ones are uploaded.

jax works in a local directory, so a slow or unreachable bucket delays no step: errors are logged and have no other
consequence. A program's name is derived from what it was compiled from and for, so its content never changes, and the
first upload of a name remains.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from midstream_core import records
from midstream_core.object_store.bucket_client import ABSENT
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import engine_bucket
from midstream_core.object_store.urls import in_bucket

log = logging.getLogger(__name__)
SUFFIX = "-cache"  # of jax's programs; files with other suffixes have the time of last use
UPLOAD_INTERVAL = 20.0  # seconds
FETCHES = 8  # programs at a time


def is_shared(chosen: str) -> bool:
    """Return whether a compile cache's directory is in a bucket."""
    return in_bucket(chosen)


class SharedCache:
    """Compile cache under ``url``, a prefix of a bucket, with its local ``directory``."""

    def __init__(self, url: str, directory: str) -> None:
        self.url, self.directory = url.rstrip("/"), directory
        self._uploaded: set[str] = set()  # names that were found in the bucket or uploaded
        self._sizes: Mapping[str, int] = {}  # at the last check: a file that still grows is not uploaded
        self._last_error = ""

    def start(self) -> None:
        """Fetch the bucket's programs, then upload new ones in the background."""
        try:
            count = self.fetch()
            log.info("compile cache: %d programs from %s", count, self.url)
        except (OSError, StoreError) as error:  # the run does not need the cache
            self._log_error(error)
        threading.Thread(target=self._upload_new, name="compile-cache", daemon=True).start()

    def fetch(self) -> int:
        """Fetch the programs that are missing in the directory; return their number."""
        client = engine_bucket(self.url)
        self._uploaded = {name for name in client.entries() if name.endswith(SUFFIX) and "/" not in name}
        os.makedirs(self.directory, exist_ok=True)
        missing = sorted(self._uploaded - set(self._local()))

        def fetch(name: str) -> None:
            records.write_bytes(os.path.join(self.directory, name), client.get(name)[0], durable=False)

        with ThreadPoolExecutor(FETCHES, "compile-cache") as pool:
            list(pool.map(fetch, missing))
        return len(missing)

    def upload(self) -> int:
        """Upload missing programs of the same size as at the last call; return how many."""
        sizes = self._local()
        new = [name for name, size in sizes.items() if name not in self._uploaded and self._sizes.get(name) == size]
        self._sizes = sizes
        for name in new:
            with open(os.path.join(self.directory, name), "rb") as file, contextlib.suppress(ObjectExistsError):
                # Another host's upload stays: it is the same program.
                engine_bucket(self.url).put(name, file.read(), replaces=ABSENT)
            self._uploaded.add(name)
        return len(new)

    def _upload_new(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(UPLOAD_INTERVAL)
            try:
                self.upload()
            except (OSError, StoreError) as error:  # the next call tries again
                self._log_error(error)

    def _local(self) -> dict[str, int]:
        """Return the sizes of the programs in the directory."""
        settings = {}
        if os.path.isdir(self.directory):
            for entry in os.scandir(self.directory):
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    settings[entry.name] = entry.stat().st_size
        return settings

    def _log_error(self, error: Exception) -> None:
        """Log the error unless the one before was the same."""
        message = " ".join(str(error).split())[:300] or type(error).__name__
        if message != self._last_error:
            self._last_error = message
            log.warning("compile cache: %s: %s; continuing without it", self.url, message)
