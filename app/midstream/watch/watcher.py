"""Watch a fleet: one feed a host, one store, snapshots for whoever asks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.prompter import PROMPTS
from midstream.watch.bucket_listing import BucketListings
from midstream.watch.host_feed import ENDING, Feed
from midstream.watch.poll_interval import Pace
from midstream.watch.snapshot import CONNECTING, Snapshot
from midstream.watch.snapshot_store import Heard, Store

TOGETHER = 0.25  # seconds: changes within them are told as one

_log = logging.getLogger(__name__)


class Watch:
    """The fleet, observed. ``interval`` is the time between two looks on each host, in seconds, where few are watched;
    ``only`` names the hosts that matter (all by default)."""

    def __init__(
        self,
        fleet: Fleet,
        hosts: Hosts,
        *,
        interval: float = 1.0,
        only: Collection[str] | None = None,
        heard: Heard | None = None,
    ):
        """``heard`` is told all that the store is, in its order: a recording of it makes the same snapshots again."""
        names = [name for name in fleet.hosts if only is None or name in only]
        kinds = {name: fleet.hosts[name].get_choice_name(type(fleet.hosts[name])) for name in names}
        self._store = Store(kinds, heard=heard)
        self._shelves = BucketListings(fleet, self._store)
        self._pace = Pace(interval, len(names))
        self._feeds = [Feed(name, hosts, self._store, self._pace.seconds) for name in names]
        self._tick = min(interval, 0.5)
        self._least = min(interval, TOGETHER)
        self._stopped = threading.Event()
        self._subscribers: tuple[Callable[[Snapshot], object], ...] = ()
        self._clock = threading.Thread(target=self._tell, name="watch-clock", daemon=True)

    def start(self) -> None:
        """Begin to watch. Hosts are reached in parallel, in the background."""
        for feed in self._feeds:
            feed.start()
        self._clock.start()

    def stop(self) -> None:
        """End all feeds. The hosts stay connected: they belong to whoever gave them. Idempotent."""
        self._stopped.set()
        self._shelves.stop()
        for feed in self._feeds:
            feed.stop()
        deadline = time.monotonic() + ENDING
        for feed in self._feeds:
            feed.join(deadline)
        with self._store.changed:
            self._store.changed.notify_all()
        if self._clock.is_alive() and self._clock is not threading.current_thread():
            self._clock.join(max(0.0, deadline - time.monotonic()))

    @property
    def pace(self) -> float:
        """Seconds between two looks on each host, as of now."""
        return self._pace.seconds

    def snapshot(self) -> Snapshot:
        """The fleet as far as it is known. Cheap; the same object until something changes."""
        return self._store.snapshot()

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """``callback`` gets the newest snapshot after changes, always on one and the same thread. One that raises is
        logged, and told no more. Returns what ends it."""
        self._subscribers = (*self._subscribers, callback)
        return lambda: self._unsubscribe(callback)

    def _unsubscribe(self, callback: Callable[[Snapshot], object]) -> None:
        self._subscribers = tuple(each for each in self._subscribers if each is not callback)

    def wait_for(self, predicate: Callable[[Snapshot], object], timeout: float | None = None) -> Snapshot | None:
        """The first snapshot, from now on, for which ``predicate`` holds; None after ``timeout`` seconds, or where the
        watch was stopped. What the predicate raises is raised here."""
        deadline = None if timeout is None else time.monotonic() + timeout
        changed = self._store.changed
        while True:
            snapshot = self._store.snapshot()
            if predicate(snapshot):
                return snapshot
            with changed:
                while self._store.snapshot() is snapshot:
                    left = None if deadline is None else deadline - time.monotonic()
                    if self._stopped.is_set() or (left is not None and left <= 0):
                        return None
                    changed.wait(left)

    def give_up(self, why: str) -> None:
        """Count hosts that have not answered yet as down, and what buckets hold as unknown, until they do."""
        self._store.unheard(why)

    def _tell(self) -> None:
        """Notice silence, and tell who asked to be told."""
        version = -1
        while not self._stopped.is_set():
            snapshot = self._store.wait_newer(version, self._tick)
            paced = self._pace.measure()
            for feed in self._feeds:
                feed.tick()
                if paced:
                    feed.pace(self._pace.seconds)
            if snapshot is None:
                continue
            version = snapshot.version
            self._shelves.look(snapshot)
            for callback in self._subscribers:
                if self._stopped.is_set():
                    return
                try:
                    callback(snapshot)
                except Exception:  # noqa: BLE001 (whatever it is, the others are still told)
                    _log.exception("a subscriber of the watch failed; it is told no more")
                    self._unsubscribe(callback)
            self._stopped.wait(self._least)


def look_once(fleet: Fleet, hosts: Hosts, timeout: float = 10.0, only: Collection[str] | None = None) -> Snapshot:
    """The fleet, looked at once: all hosts in parallel. One that cannot be reached, or does not answer within
    ``timeout`` seconds, is down, and says why; so does a run whose bucket does not."""
    watch = Watch(fleet, hosts, only=only)
    watch.start()
    try:
        decided, asked = None, -1
        while decided is None and (PROMPTS.busy or asked != PROMPTS.questions):
            asked = PROMPTS.questions  # a person's time to think is not the host's
            decided = watch.wait_for(_decided, timeout)
        if decided is None:
            watch.give_up(f"no answer within {timeout:.0f} s")
            decided = watch.snapshot()
        if not _listed(decided):  # what a bucket holds is asked from here, and belongs to the look
            decided = watch.wait_for(_listed, timeout)
            if decided is None:
                watch.give_up(f"no answer within {timeout:.0f} s")
        return decided or watch.snapshot()
    finally:
        watch.stop()


def _decided(snapshot: Snapshot) -> bool:
    """Whether every host has answered, or refused to."""
    return all(host.link != CONNECTING for host in snapshot.hosts)


def _listed(snapshot: Snapshot) -> bool:
    """Whether the checkpoints of every run are known, or why they are not."""
    return all(run.listed for run in snapshot.runs)
