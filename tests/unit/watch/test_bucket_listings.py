"""Threads that list buckets: their end, and their failures."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from midstream.fleet.fleet import Fleet
from midstream.watch import bucket_listings
from midstream.watch.snapshot_store import SnapshotStore

URL = "gs://runs/lab"
TIMEOUT = 60.0  # seconds


class Listed:
    """Stands for the snapshot store: receives what was listed."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.changed = threading.Event()

    def set_bucket_checkpoints(self, _url: str, _run_id: str, _checkpoints: list[Any], error: str) -> None:
        self.errors.append(error)
        self.changed.set()


def listing(listed: Listed, stopped: threading.Event) -> bucket_listings._PrefixListing:
    return bucket_listings._PrefixListing(Fleet(), URL, cast("SnapshotStore", listed), stopped)


def the_thread() -> threading.Thread:
    [found] = [each for each in threading.enumerate() if each.name == f"bucket-{URL}"]
    return found


def test_thread_ends_if_it_is_stopped_before_it_waits() -> None:
    known, made = threading.Event(), list[bucket_listings._PrefixListing]()

    class Stopped(threading.Event):
        """Is set, as by `BucketListings.stop`, once the thread has found that it is not."""

        def is_set(self) -> bool:
            found = super().is_set()
            if not found and threading.current_thread().name.startswith("bucket-"):
                assert known.wait(TIMEOUT)
                self.set()
                made[0].set_runs({})
            return found

    made.append(listing(Listed(), Stopped()))
    thread = the_thread()
    known.set()
    thread.join(10.0)
    assert not thread.is_alive()


def test_failed_listing_is_reported_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("midstream.stores.bucket_access.access_for", fail)
    monkeypatch.setattr(bucket_listings, "RETRY_INTERVAL", 0.0)
    listed, stopped = Listed(), threading.Event()
    prefix = listing(listed, stopped)
    thread = the_thread()
    prefix.set_runs({"r": "any"})
    for _ in range(2):
        assert listed.changed.wait(TIMEOUT)
        listed.changed.clear()
    stopped.set()
    prefix.set_runs({})
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert set(listed.errors) == {"its contents cannot be read: can't start new thread"}
