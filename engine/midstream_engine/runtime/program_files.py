"""Compiled programs by name, checked when they are read, on disk and in a bucket.

Each file begins with a line of JSON: the key that the program follows from, the size and the hash of its bytes. A file
that is partial, was changed, or was made from another key is named in the log and not used; the program is compiled
again and replaces it, in the bucket too. A hash is no signature: loading a program runs code from it, so directory and
bucket need the same trust as the engine's code.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import queue
import threading
import time
from typing import Any

import jax
import zstandard

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_core.object_store.bucket_client import ABSENT, StoredObject
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import engine_bucket

log = logging.getLogger(__name__)
FOLDER = "programs"
MAGIC = b"midstream program 1\n"
UNUSED_SECONDS = 30 * 86400.0  # after which a program is removed: each version of the engine has its own
LIST_TIMEOUT = 30.0  # seconds that a start waits for the names of a bucket's programs
EXIT_TIMEOUT = 10.0  # seconds that a process waits at its end for uploads
LARGEST_PROGRAM = 2 << 30  # bytes of an object that are read


def packed(content: bytes, key: JsonValue) -> bytes:
    """Return the file of a program that was made from ``key``."""
    body = zstandard.ZstdCompressor(level=1).compress(content)
    header = {"bytes": len(body), "key": key, "sha256": hashlib.sha256(body).hexdigest()}
    return MAGIC + records.canonical_json(header) + b"\n" + body


def unpacked(data: bytes, key: JsonValue) -> bytes:
    """Return the program in a file.

    Raises:
        ValueError: The file is partial, was changed, or has no program that was made from ``key``.
    """
    magic, line, body = data[: len(MAGIC)], *data[len(MAGIC) :].partition(b"\n")[::2]
    if magic != MAGIC:
        raise ValueError("it is no program of this version")
    header = json.loads(line)
    if not isinstance(header, dict) or len(body) != header.get("bytes"):
        raise ValueError("it is partial")
    if hashlib.sha256(body).hexdigest() != header.get("sha256"):
        raise ValueError("its content has changed since it was written")
    if records.canonical_json(header.get("key")) != records.canonical_json(key):
        raise ValueError("it was compiled from other inputs than its name says")
    return zstandard.ZstdDecompressor().decompress(body)


class ProgramBucket:
    """Programs below ``url`` in a bucket. Errors are logged; no run needs the bucket."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._listed: dict[str, StoredObject] = {}
        self._read: dict[str, str] = {}  # versions that were read, by name
        self._known = threading.Event()
        self._last_error = ""
        self._uploads: queue.SimpleQueue[tuple[str, str, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="compile-cache", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes; None where the bucket does not have it."""
        if not self._known.wait(LIST_TIMEOUT):
            self._log_error(f"no list of its programs within {LIST_TIMEOUT:.0f} s")
            return None
        stored = self._listed.get(name)
        if stored is None or stored.size > LARGEST_PROGRAM:
            return None
        try:
            data, version = engine_bucket(self.url).get(name)
        except (OSError, StoreError) as error:
            self._log_error(error)
            return None
        self._read[name] = version
        return data

    def upload(self, name: str, path: str, *, new: bool) -> None:
        """Upload a file in the background.

        ``new``: it was compiled now, so an object of that name that was read before is replaced. Otherwise it is
        uploaded only where there is none.
        """
        self._uploads.put((name, path, new))

    def close(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Wait for uploads."""
        self._uploads.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        try:
            self._listed = engine_bucket(self.url).entries()
            log.info("compile cache: %d programs in %s", len(self._listed), self.url)
        except (OSError, StoreError) as error:
            self._log_error(error)
        self._known.set()
        while (item := self._uploads.get()) is not None:
            name, path, new = item
            if name in self._listed and not new:
                continue
            try:
                with open(path, "rb") as file, contextlib.suppress(ObjectExistsError):  # another host's is as good
                    data, replaces = file.read(), self._read.get(name, ABSENT)
                    self._listed[name] = engine_bucket(self.url).put(name, data, replaces=replaces)
            except (OSError, StoreError) as error:
                self._log_error(error)

    def _log_error(self, error: Exception | str) -> None:
        """Log the error unless the one before was the same."""
        message = " ".join(str(error).split())[:300] or type(error).__name__
        if message != self._last_error:
            self._last_error = message
            log.warning("compile cache: %s: %s; continuing without it", self.url, message)


class ProgramFiles:
    """Programs in ``directory``, fetched from ``bucket`` and uploaded to it."""

    def __init__(self, directory: str, bucket: ProgramBucket | None = None) -> None:
        self.directory, self.bucket = directory, bucket

    def read(self, name: str, key: JsonValue) -> bytes | None:
        """Return the program ``name``, made from ``key``; None if none is valid."""
        path = os.path.join(self.directory, name)
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_uid != os.getuid():
                    raise ValueError("it belongs to another user")
                content = unpacked(file.read(), key)
        except FileNotFoundError:
            return self._fetch(name, path, key)
        except (OSError, ValueError, zstandard.ZstdError) as error:
            report_unused(path, error)
            return self._fetch(name, path, key)
        with contextlib.suppress(OSError):  # another attempt removes it, or the disk is read-only
            os.utime(path)
        if self.bucket is not None:
            self.bucket.upload(name, path, new=False)
        return content

    def write(self, name: str, key: JsonValue, content: bytes) -> None:
        """Store a program.

        Raises:
            OSError: The directory cannot be written.
        """
        path = os.path.join(self.directory, name)
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        records.write_bytes(path, packed(content, key))
        if self.bucket is not None:
            self.bucket.upload(name, path, new=True)
        _remove_unused(self.directory)

    def _fetch(self, name: str, path: str, key: JsonValue) -> bytes | None:
        data = self.bucket.get(name) if self.bucket is not None else None
        if self.bucket is None or data is None:
            return None
        try:
            content = unpacked(data, key)
        except (ValueError, zstandard.ZstdError) as error:
            report_unused(f"{self.bucket.url}/{name}", error)
            return None
        with contextlib.suppress(OSError):  # a full disk: the program is used all the same
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            records.write_bytes(path, data, durable=False)
        return content


def report_unused(where: str, error: Exception) -> None:
    """Log that a stored program is compiled again, and why."""
    log.warning(
        "%s is not used: %s: %s; the program is compiled again",
        where, type(error).__name__, " ".join(str(error).split())[:200],
    )  # fmt: skip


_shared: dict[str, ProgramBucket] = {}  # by the directory of the compile cache


def share_programs(directory: str, url: str) -> None:
    """Share the programs in a directory through a prefix of a bucket from now on."""
    if directory not in _shared:
        _shared[directory] = ProgramBucket(url)


def program_files() -> ProgramFiles | None:
    """Return the files of compiled programs; None if programs are not cached.

    Nothing is cached without a compile cache, with one of another user, and when XLA dumps its programs, for which they
    have to be compiled.
    """
    if "xla_dump_to" in os.environ.get("XLA_FLAGS", ""):
        return None
    settings: Any = jax.config
    root = settings.jax_compilation_cache_dir
    if not root or not settings.jax_enable_compilation_cache or "://" in root:
        return None
    directory = os.path.join(root, FOLDER)
    for path in (root, directory):
        if os.path.exists(path) and os.stat(path).st_uid != os.getuid():
            return None
    return ProgramFiles(directory, _shared.get(root))


def _remove_unused(directory: str) -> None:
    """Remove programs that were not loaded for a long time."""
    oldest = time.time() - UNUSED_SECONDS
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another attempt removes it, too
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
