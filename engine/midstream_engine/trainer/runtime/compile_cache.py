"""A compile cache in a bucket, for hosts that come and go: fetched before anything is compiled, and sent what is new.

jax works in a local directory beside it, so a bucket that is slow or gone costs no step: whatever fails here is said in
the log and otherwise without consequence. Programs are named by what they were compiled from and for, never changed,
and written once: whoever comes second leaves the first one's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from midstream_engine.requester_pays import tensorstore_context

log = logging.getLogger(__name__)
SCHEME = "gs://"
SUFFIX = "-cache"  # of jax's files; those beside them say when one was used
EVERY = 20.0  # seconds between two looks for what is new
FETCH = 300.0  # seconds at most for all that the bucket has


def is_shared(chosen: str) -> bool:
    return chosen.startswith(SCHEME)


class SharedCache:
    """``url`` is ``gs://BUCKET/PREFIX``, ``directory`` where jax looks."""

    def __init__(self, url: str, directory: str):
        self.url, self.directory = url.rstrip("/"), directory
        self._there: set[str] = set()  # in the bucket, as far as we know
        self._sizes: Mapping[str, int] = {}  # at the last look: a file that still grows is not sent
        self._said = ""

    def start(self) -> None:
        """Fetch what the bucket has, and send what is new from now on, in the background."""
        try:
            count = self.fetch()
            log.info("compile cache: %d programs from %s", count, self.url)
        except (OSError, ValueError, RuntimeError, TimeoutError) as error:  # a cache is never worth a run
            self._say(error)
        threading.Thread(target=self._send_on, name="compile-cache", daemon=True).start()

    def fetch(self) -> int:
        """How many programs were missing here and came."""
        store = self._store()
        names = [key.decode() for key in store.list().result(timeout=FETCH)]
        self._there = {name for name in names if name.endswith(SUFFIX) and "/" not in name}
        os.makedirs(self.directory, exist_ok=True)
        missing = sorted(self._there - set(self._local()))
        for name, reading in [(name, store.read(name)) for name in missing]:
            data = bytes(reading.result(timeout=FETCH).value)
            temporary = os.path.join(self.directory, f".{name}.{os.getpid()}")
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, os.path.join(self.directory, name))
        return len(missing)

    def send(self) -> int:
        """Send what the bucket lacks and has stood still since the last look. How many that were."""
        sizes = self._local()
        done = [name for name, size in sizes.items() if name not in self._there and self._sizes.get(name) == size]
        self._sizes = sizes
        store = self._store() if done else None
        for name in done:
            assert store is not None
            there = store.read(name).result(timeout=FETCH)
            if there.state == "missing":  # one that came meanwhile stays: it is the same program
                with open(os.path.join(self.directory, name), "rb") as file:
                    store.write(name, file.read(), if_equal=there.stamp.generation).result(timeout=FETCH)
            self._there.add(name)
        return len(done)

    def _send_on(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(EVERY)
            try:
                self.send()
            except (OSError, ValueError, RuntimeError, TimeoutError) as error:  # the next look tries again
                self._say(error)

    def _local(self) -> dict[str, int]:
        """Sizes of the programs that lie here."""
        found = {}
        if os.path.isdir(self.directory):
            for entry in os.scandir(self.directory):
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    found[entry.name] = entry.stat().st_size
        return found

    def _store(self) -> Any:
        import tensorstore as ts

        bucket, _, prefix = self.url.removeprefix(SCHEME).partition("/")
        path = f"{prefix}/" if prefix else ""
        context = ts.Context(tensorstore_context(self.url))
        spec = {"driver": "gcs", "bucket": bucket, "path": path}
        return ts.KvStore.open(spec, context=context).result(timeout=FETCH)

    def _say(self, error: Exception) -> None:
        words = " ".join(str(error).split())[:300] or type(error).__name__
        if words != self._said:
            self._said = words
            log.warning("compile cache: %s: %s; it goes on without", self.url, words)
