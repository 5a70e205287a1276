"""Listings of runs' checkpoints in buckets, with one thread per bucket prefix.

A bucket that does not answer delays no other bucket.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.snapshot_store import SnapshotStore
from midstream_core.json_types import JsonValue

LIST_INTERVAL = 30.0  # seconds after which a run's prefix is listed again if the run has not changed
RETRY_INTERVAL = 10.0  # seconds; the same, after a failure

_log = logging.getLogger(__name__)

Contents = dict[str, Any]  # of manifests, by name


class BucketListings:
    """Listings of checkpoints of runs with a ``store.json``, for the snapshot store."""

    def __init__(self, fleet: Fleet, store: SnapshotStore) -> None:
        self._fleet = fleet
        self._store = store
        self._threads: dict[str, _PrefixListing] = {}
        self._stored: dict[str, tuple[tuple[RunView, ...], list[RunView]]] = {}  # host -> its runs, those in buckets
        self._stopped = threading.Event()

    def update(self, snapshot: Snapshot) -> None:
        """List the runs of this snapshot from now on."""
        runs_of: dict[str, Contents] = {}
        for views in snapshot.by_host.hosts:
            for run in self._in_buckets(views):
                runs_of.setdefault(run.store, {}).setdefault(run.run_id, {})[run.host] = _change_key(run)
        for url in runs_of.keys() | self._threads.keys():
            if url not in self._threads:
                self._threads[url] = _PrefixListing(self._fleet, url, self._store, self._stopped)
            self._threads[url].set_runs(runs_of.get(url, {}))

    def _in_buckets(self, views: tuple[RunView, ...]) -> list[RunView]:
        """Return those of a host's runs that are stored in a bucket.

        The others are not searched again until their host has reported.
        """
        if not views:
            return []
        host = views[0].host
        stored = self._stored.get(host)
        if stored is None or stored[0] is not views:
            stored = self._stored[host] = (views, [run for run in views if run.store])
        return stored[1]

    def stop(self) -> None:
        """Request the threads to end.

        A thread that waits for its bucket cannot be interrupted and ends later.
        """
        self._stopped.set()
        for thread in tuple(self._threads.values()):  # `update` may add one
            thread.set_runs({})


def _change_key(run: RunView) -> tuple[Any, ...]:
    """Return values whose change means that the listing may have changed."""
    return run.attempt, run.status and (run.status.checkpoint, run.state), run.fence


class _PrefixListing:
    """Lists the runs below one prefix, one after the other."""

    def __init__(self, fleet: Fleet, url: str, store: SnapshotStore, stopped: threading.Event) -> None:
        self._fleet = fleet
        self._url = url
        self._store = store
        self._stopped = stopped
        self._changed = threading.Condition()
        self._wanted: dict[str, JsonValue] = {}  # run -> its change keys
        self._listed: dict[
            str, tuple[float, JsonValue]
        ] = {}  # run -> (when it is listed again, its change keys at that time)
        self._known: dict[str, Contents] = {}  # run -> cached contents of its manifests
        threading.Thread(target=self._work, name=f"bucket-{url}", daemon=True).start()

    def set_runs(self, runs: dict[str, JsonValue]) -> None:
        with self._changed:
            if runs != self._wanted or self._stopped.is_set():
                self._wanted = runs
                self._changed.notify()

    def _work(self) -> None:
        while not self._stopped.is_set():
            with self._changed:
                if self._stopped.is_set():  # its notification came before this thread waited
                    return
                due, wait = self._due()
                if due is None:
                    self._changed.wait(wait)
                    continue
                keys = self._wanted[due]
            checkpoints, error = self._list(due)
            self._listed[due] = (time.monotonic() + (RETRY_INTERVAL if error else LIST_INTERVAL), keys)
            if not self._stopped.is_set():
                self._store.set_bucket_checkpoints(self._url, due, checkpoints, error)

    def _due(self) -> tuple[str | None, float | None]:
        """Return the run to list now, or the seconds until the next one is due."""
        now = time.monotonic()
        times = {}
        for run_id, keys in self._wanted.items():
            again, before = self._listed.get(run_id, (0.0, None))
            times[run_id] = again if keys == before else 0.0
        if not times:
            return None, None
        first = min(times, key=lambda run_id: times[run_id])
        return (first, 0.0) if times[first] <= now else (None, times[first] - now)

    def _list(self, run_id: str) -> tuple[list[dict[str, JsonValue]], str]:
        """Return the checkpoints, or the reason why they are unknown."""
        from midstream.stores.bucket_access import access_for
        from midstream.stores.bucket_run import BucketRun

        try:
            bucket = BucketRun(self._url, run_id, access_for(self._fleet, self._url))
            listed = bucket.checkpoints(self._known.setdefault(run_id, {}))
            return [checkpoint.to_json() for checkpoint in listed], ""
        except MidstreamError as error:
            return [], " ".join(str(error).split())
        except Exception as error:  # noqa: BLE001  without this thread an old list would count as the present one
            if not isinstance(error, (ValueError, KeyError, TypeError)):  # no malformed object
                _log.exception("the listing of %s failed", self._url)
            return [], f"its contents cannot be read: {' '.join(str(error).split())}"
