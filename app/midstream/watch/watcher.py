"""Watcher of a fleet, with snapshots for subscribers.

A watcher has one feed for each host, and one snapshot store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.prompter import PROMPTS
from midstream.watch.bucket_listings import BucketListings
from midstream.watch.poll_interval import PollInterval
from midstream.watch.snapshot import CONNECTING, Snapshot
from midstream.watch.snapshot_store import Listener, SnapshotStore

if TYPE_CHECKING:
    from midstream.watch.host_feed import HostFeed

MAX_BATCH_TIME = 0.25  # seconds; changes within them are reported together
MAX_TICK = 0.5  # seconds between two checks for unreachable hosts
SHUTDOWN_TIMEOUT = 5.0  # seconds that all feeds may take to end
SNAPSHOT_TIMEOUT = 15.0  # seconds after which a host counts as unreachable

_log = logging.getLogger(__name__)


class Watcher:
    """Watches the hosts of a fleet in the background."""

    def __init__(
        self,
        fleet: Fleet,
        hosts: HostPool,
        *,
        interval: float = 1.0,
        only: Collection[str] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Prepare to watch.

        Args:
            fleet: The fleet.
            hosts: Its hosts.
            interval: Seconds between two polls of each host of a small fleet.
            only: Names of the hosts to watch; all by default.
            listener: Gets every input of the snapshot store, in order. Replaying them gives the same snapshots.
        """
        names = [name for name in fleet.hosts if only is None or name in only]
        kinds = {name: fleet.hosts[name].get_choice_name(type(fleet.hosts[name])) for name in names}
        self._store = SnapshotStore(kinds, listener=listener)
        self._buckets = BucketListings(fleet, self._store)
        self._poll_interval = PollInterval(interval, len(names))
        self._names, self._hosts = names, hosts
        self._feeds: list[HostFeed] = []
        self._failing: set[str] = set()  # names of feeds; the last check of each failed
        self._start_lock = threading.Lock()
        self._tick = min(interval, MAX_TICK)
        self._batch_time = min(interval, MAX_BATCH_TIME)
        self._stopped = threading.Event()
        self._subscribers: tuple[Callable[[Snapshot], object], ...] = ()
        self._clock = threading.Thread(target=self._notify, name="watch-clock", daemon=True)

    def start(self) -> None:
        """Start to watch: hosts are connected in parallel, in the background.

        Does nothing after `stop`.
        """
        # The terminal UI shows its first frame without these.
        from midstream.ownership.owner_judge import OwnerJudge
        from midstream.watch.host_feed import HostFeed

        with self._start_lock:
            if self._stopped.is_set():
                return
            self._store.owners = OwnerJudge(self._hosts.fleet)
            interval = self._poll_interval.seconds
            self._feeds = [HostFeed(name, self._hosts, self._store, interval) for name in self._names]
            for feed in self._feeds:
                feed.start()
            self._clock.start()

    def stop(self) -> None:
        """End all feeds. The hosts stay connected: the caller owns them. Idempotent."""
        with self._start_lock:
            self._stopped.set()
        self._buckets.stop()
        for feed in self._feeds:
            feed.stop()
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        for feed in self._feeds:
            feed.join(deadline)
        with self._store.changed:
            self._store.changed.notify_all()
        if self._clock.is_alive() and self._clock is not threading.current_thread():
            self._clock.join(max(0.0, deadline - time.monotonic()))

    @property
    def interval(self) -> float:
        """Current seconds between two polls of each host."""
        return self._poll_interval.seconds

    def snapshot(self) -> Snapshot:
        """Return the current snapshot. Cheap; the same object until something changes."""
        return self._store.snapshot()

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Call ``callback`` with the newest snapshot after changes, always on one thread.

        A callback that raises is logged and unsubscribed. Returns a function that unsubscribes it.
        """
        self._subscribers = (*self._subscribers, callback)
        return lambda: self._unsubscribe(callback)

    def _unsubscribe(self, callback: Callable[[Snapshot], object]) -> None:
        self._subscribers = tuple(subscriber for subscriber in self._subscribers if subscriber is not callback)

    def wait_for(self, predicate: Callable[[Snapshot], object], timeout: float | None = None) -> Snapshot | None:
        """Return the first snapshot from now on for which ``predicate`` is true.

        None after ``timeout`` seconds, or once the watcher is stopped. Errors of the predicate are raised here.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        changed = self._store.changed
        while True:
            snapshot = self._store.snapshot()
            if predicate(snapshot):
                return snapshot
            with changed:
                while self._store.snapshot() is snapshot:
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if self._stopped.is_set() or (remaining is not None and remaining <= 0):
                        return None
                    changed.wait(remaining)

    @property
    def queued(self) -> bool:
        """Whether hosts wait for their turn to connect."""
        return any(not feed.begun for feed in self._feeds)

    def mark_unanswered(self, why: str) -> None:
        """Mark hosts that have not answered as down, and unlisted buckets as unknown.

        The marks last until they answer.
        """
        self._store.mark_unanswered(why)

    def _notify(self) -> None:
        """Detect unreachable hosts, and call the subscribers."""
        version = -1
        while not self._stopped.is_set():
            snapshot = self._store.wait_newer(version, self._tick)
            try:
                self._check_feeds()
                if snapshot is not None:
                    self._buckets.update(snapshot)
            except Exception:  # noqa: BLE001 (without this thread unreachable hosts would count as live for ever)
                _log.exception("a check of the watched hosts failed; it is repeated")
            if snapshot is None:
                continue
            version = snapshot.version
            for callback in self._subscribers:
                if self._stopped.is_set():
                    return
                try:
                    callback(snapshot)
                except Exception:  # noqa: BLE001 (the other subscribers must still be called)
                    _log.exception("a subscriber of the watcher failed; it is unsubscribed")
                    self._unsubscribe(callback)
            self._stopped.wait(self._batch_time)

    def _check_feeds(self) -> None:
        """Detect unreachable hosts, and adapt the interval between two polls."""
        changed = self._poll_interval.measure()
        for feed in self._feeds:
            try:
                if changed:
                    feed.set_interval(self._poll_interval.seconds)
                feed.tick()
                self._failing.discard(feed.name)
            except Exception:  # noqa: BLE001 (the other feeds must still be checked)
                if feed.name not in self._failing:  # logged once, not at each tick
                    self._failing.add(feed.name)
                    _log.exception("the check of %s failed; it is repeated", feed.name)


def take_snapshot(
    hosts: HostPool,
    timeout: float = SNAPSHOT_TIMEOUT,
    only: Collection[str] | None = None,
    seen: Callable[[Snapshot], object] | None = None,
) -> Snapshot:
    """Poll all hosts once, in parallel, and return the snapshot.

    A host that cannot be reached or does not answer within ``timeout`` seconds is down, with the reason. The same holds
    for the checkpoints of a run whose bucket does not answer.

    Args:
        hosts: Its hosts.
        timeout: Seconds. A host that waits for its turn to connect, in a large fleet, has this time from then on.
        only: Names of the hosts to poll; all by default.
        seen: Gets the snapshots on the way, in which some hosts have not answered yet. Called on this thread.
    """
    watcher = Watcher(hosts.fleet, hosts, only=only)
    watcher.start()
    condition = _answered if seen is None else _showing(_answered, seen)
    try:
        answered, questions = None, -1
        while answered is None and (watcher.queued or PROMPTS.busy or questions != PROMPTS.questions):
            questions = PROMPTS.questions  # the time of a question does not count as the host's
            answered = watcher.wait_for(condition, timeout)
        if answered is None:
            watcher.mark_unanswered(f"no answer within {timeout:.0f} s")
            answered = watcher.snapshot()
        if not _listed(answered):  # buckets are listed from here, once the hosts have named them
            answered = watcher.wait_for(_listed if seen is None else _showing(_listed, seen), timeout)
            if answered is None:
                watcher.mark_unanswered(f"no answer within {timeout:.0f} s")
        return answered or watcher.snapshot()
    finally:
        watcher.stop()


def _showing(condition: Callable[[Snapshot], bool], seen: Callable[[Snapshot], object]) -> Callable[[Snapshot], bool]:
    """Return a condition that passes each snapshot to ``seen``."""

    def holds(snapshot: Snapshot) -> bool:
        seen(snapshot)
        return condition(snapshot)

    return holds


def _answered(snapshot: Snapshot) -> bool:
    """Return True once every host has answered or failed."""
    return all(host.link != CONNECTING for host in snapshot.hosts)


def _listed(snapshot: Snapshot) -> bool:
    """Return True once the checkpoints of every run are listed, or the listing failed."""
    return all(run.checkpoints_listed for run in snapshot.runs)
