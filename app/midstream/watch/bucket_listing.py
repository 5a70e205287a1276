"""Checkpoints that lie in a bucket: listed from here, by one thread a bucket, so that one which does not answer holds
nothing else up."""

from __future__ import annotations

import threading
import time
from typing import Any

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.snapshot_store import Store
from midstream_engine import records

EVERY = 30.0  # seconds after which a run's prefix is listed again without any news of it
AGAIN = 10.0  # the same, after it could not be


class BucketListings:
    """Lists what runs with a ``store.json`` keep elsewhere, and tells the store. Threads start when they are needed."""

    def __init__(self, fleet: Fleet, store: Store):
        self._fleet = fleet
        self._store = store
        self._threads: dict[str, _Shelf] = {}
        self._stopped = threading.Event()

    def look(self, snapshot: Snapshot) -> None:
        """Take in which runs there are, and what has become of them."""
        wanted: dict[str, dict[str, Any]] = {}
        for run in snapshot.runs:
            if run.store:
                wanted.setdefault(run.store, {}).setdefault(run.run_id, {})[run.host] = _news(run)
        for url in wanted.keys() | self._threads.keys():
            if url not in self._threads:
                self._threads[url] = _Shelf(self._fleet, url, self._store, self._stopped)
            self._threads[url].want(wanted.get(url, {}))

    def stop(self) -> None:
        """Ask the threads to end. One that waits for its bucket is left behind: nothing can interrupt that."""
        self._stopped.set()
        for thread in self._threads.values():
            thread.want({})


def _news(run: RunView) -> tuple[Any, ...]:
    """What tells that the listing may have changed."""
    return run.attempt, run.status and (run.status.checkpoint, run.state), run.fence


class _Shelf:
    """The runs below one ``gs://`` prefix, one after the other."""

    def __init__(self, fleet: Fleet, url: str, store: Store, stopped: threading.Event):
        self._fleet = fleet
        self._url = url
        self._store = store
        self._stopped = stopped
        self._changed = threading.Condition()
        self._wanted: dict[str, Any] = {}  # run -> what was heard of it
        self._listed: dict[str, tuple[float, Any]] = {}  # run -> (when it is listed again, what was heard of it then)
        self._known: dict[str, dict[str, Any]] = {}  # run -> what was read of its manifests
        threading.Thread(target=self._work, name=f"shelf-{url}", daemon=True).start()

    def want(self, runs: dict[str, Any]) -> None:
        with self._changed:
            if runs != self._wanted or self._stopped.is_set():
                self._wanted = runs
                self._changed.notify()

    def _work(self) -> None:
        while not self._stopped.is_set():
            with self._changed:
                due, wait = self._due()
                if due is None:
                    self._changed.wait(wait)
                    continue
                heard = self._wanted[due]
            found, error = self._list(due)
            self._listed[due] = (time.monotonic() + (AGAIN if error else EVERY), heard)
            if not self._stopped.is_set():
                self._store.shelf(self._url, due, found, error)

    def _due(self) -> tuple[str | None, float | None]:
        """The run that is to be listed now; else the seconds until one is."""
        now = time.monotonic()
        times = {}
        for run_id, heard in self._wanted.items():
            again, before = self._listed.get(run_id, (0.0, None))
            times[run_id] = again if heard == before else 0.0
        if not times:
            return None, None
        first = min(times, key=lambda run_id: times[run_id])
        return (first, 0.0) if times[first] <= now else (None, times[first] - now)

    def _list(self, run_id: str) -> tuple[list[dict[str, Any]], str]:
        """The checkpoints, or why they are not known."""
        from midstream.stores.bucket_access import access_for
        from midstream.stores.bucket_checkpoints import BucketRun

        try:
            there = BucketRun(self._url, run_id, access_for(self._fleet, self._url))
            return there.checkpoints(self._known.setdefault(run_id, {})), ""
        except MidstreamError as error:
            return [], " ".join(str(error).split())
        except (records.RecordError, ValueError, KeyError, TypeError) as error:
            return [], f"what lies there cannot be read: {' '.join(str(error).split())}"
